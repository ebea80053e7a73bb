"""Latent attention through whole bundles: golden logits, one cache row a token, both forms, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import latent_models
from tests.latent_models import MODELS
from tests.prefill import prefill_of

from h2o_runtime import Generator
from h2o_runtime.attention import AttentionShape
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.caches import Contiguous, Evicting, Offload, Paged
from h2o_runtime.errors import ConfigError
from h2o_runtime.execution.footprint import footprint
from h2o_runtime.kv import KV
from h2o_runtime.layers.latent import Latent, absorbed_cheaper, expanded_shape
from h2o_runtime.layers.live import Layers, LiveLayers
from h2o_runtime.model_spec import LatentSpec
from h2o_runtime.operators import CACHED_ATTENTION
from h2o_runtime.policies.decode import Quest
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Subquadratic, Window
from h2o_runtime.providers.functions import FunctionProvider
from h2o_runtime.providers.native import NativeCpuProvider
from h2o_runtime.providers.select import provider_factory

pytestmark = pytest.mark.usefixtures("models_stay_loaded")

FULL = Full()
SMALL: dict[str, Any] = {"chunk_size": 16, "batch_size": 32, "local": 4, "heavy": 6, "dense_tail": 4}
TILES: dict[str, Any] = {"tile": 8, "queries": 4, "candidates": 32}
GATE = 3e-5


def load(bundle: Path, latent: str = "auto", **arguments: Any) -> Generator:
    arguments["layers"] = {"latent": latent}
    return Generator.load(bundle, **{"context": 128, "device": "cpu", "threads": 1, **arguments})


def all_logits(
    generator: Generator, ids: NDArray[Any], policy: PrefillPolicy[Any] = FULL
) -> NDArray[np.float32]:
    return np.concatenate([logits.copy() for _, logits in generator.each_logits(ids, policy)])


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    """Of the model with mixtures of experts."""
    return latent_models.golden_bundle(shared_folder, MODELS[2])


@pytest.fixture
def prompt() -> NDArray[np.int64]:
    return np.random.default_rng(5).integers(0, 128, 100)


@pytest.fixture(params=["absorbed", "expanded"])
def generator(bundle: Path, request: pytest.FixtureRequest) -> Iterator[Generator]:
    with load(bundle, attention="functions", latent=request.param) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "attention"), [*((name, "native") for name in MODELS), (MODELS[2], "functions")]
)
def test_prompt_and_continuation_are_those_of_transformers(
    name: str, attention: str, shared_folder: Path
) -> None:
    known = latent_models.arrays(name)
    with load(latent_models.golden_bundle(shared_folder, name), attention=attention) as model:
        assert np.abs(all_logits(model, known["prompt_ids"]) - known["prompt_logits"]).max() <= GATE
        views = [model.session.store.open(layer).__enter__().view(40) for layer in range(model.model.layers)]
        latents = np.stack([view.k[:40, 0] for view in views])
        assert all(view.latent for view in views)
        assert latents.shape == (3, 40, 40)  # 40 numbers a token, where keys and values would be 144
        errors = np.abs(latents - known["latents"]).max(axis=(1, 2))
        assert errors.max() <= 1e-5
        assert errors[0] <= 5e-6
        logits = model.prefill(known["prompt_ids"], FULL)
        for token, expected in zip(known["greedy_ids"], known["greedy_logits"], strict=True):
            assert logits.argmax() == token
            logits = model.decode(int(token))
            assert np.abs(logits - expected).max() <= GATE


@pytest.mark.parametrize(("score", "heads"), [("query", "query"), ("colsum", "kv")])
def test_absorbed_is_expanded_under_sparse_attention(
    score: str, heads: str, bundle: Path, prompt: NDArray[np.int64]
) -> None:
    """The same memory sets, and the same logits but for rounding."""
    policy = prefill_of(score=score, heads=heads, **SMALL, **(TILES if score == "query" else {}))
    found = []
    for form in ("absorbed", "expanded"):
        with load(bundle, attention="functions", latent=form) as model:
            logits = model.prefill(prompt, policy).copy()
            assert model.loaded.forward.layers.report()["latent"] == form
            found.append((logits, model.report().last, model.decode(7).copy()))
    (one, sets, next_one), (other, other_sets, next_other) = found
    np.testing.assert_allclose(one, other, atol=GATE)
    np.testing.assert_allclose(next_one, next_other, atol=GATE)
    np.testing.assert_array_equal(sets, other_sets)
    assert sets[0].shape == (1 if heads == "kv" else 4, 10)


def test_chunked_is_whole_and_a_kept_past_is_a_fresh_run(
    generator: Generator, prompt: NDArray[np.int64]
) -> None:
    whole = all_logits(generator, prompt)
    tiled = all_logits(generator, prompt, Full(batch_size=16))
    np.testing.assert_allclose(tiled, whole, atol=GATE)
    generator.prefill(prompt[:60], FULL, reuse=False)
    again = generator.prefill(prompt, FULL)
    assert generator.reused == 60
    np.testing.assert_allclose(again, whole[-1], atol=GATE)


@pytest.mark.parametrize("cache", [Paged(), Contiguous(rows="int8")])
def test_other_caches_hold_latents_too(cache: Any, bundle: Path, prompt: NDArray[np.int64]) -> None:
    """A past that is stored otherwise is attended to as latents, whatever would cost less."""
    with load(bundle) as plain:
        expected = plain.prefill(prompt, FULL).copy()
    with load(bundle, cache=cache) as model:
        model.prefill(prompt[:60], FULL)
        found = model.prefill(prompt, FULL)
        assert model.reused == 60
        assert model.loaded.forward.layers.report()["latent"] == "absorbed"
    gate = {"float32": GATE, "int8": 0.6}[cache.stored_dtype(model.model)]
    assert np.abs(found - expected).max() <= gate


def test_operations_choose_the_form() -> None:
    """Of DeepSeek-V2-Lite: what is done for a past of keys pays once enough queries see it."""
    lite = LatentSpec(rank=512, nope_size=128, rope_size=64, value_size=128)
    assert not absorbed_cheaper(lite, pairs=4096 * 4097 // 2, past=0)
    assert absorbed_cheaper(lite, pairs=20 * 30_000, past=30_000)
    assert not absorbed_cheaper(lite, pairs=200 * 30_000, past=30_000)
    # Both by the whole count: what a key, a query and a pair cost.
    for n, past in ((100, 30_000), (170, 30_000), (172, 30_000), (500, 100)):
        pairs = n * past + n * (n + 1) // 2
        step = 2 * 512 * (128 + 128)
        absorbed, expanded = n * step + pairs * 2 * (1024 + 64), (past + n) * step + pairs * 2 * 320
        assert absorbed_cheaper(lite, pairs, past) == (absorbed < expanded), (n, past)


def test_buffers_are_what_the_footprint_says(bundle: Path) -> None:
    with load(bundle, attention="functions") as model:
        live: Any = model.loaded.forward.layers
        assert len(live[0].absorbed) == Latent().absorbed_rows(model.model, 128, Contiguous()) == 24
        buffers = model.loaded.forward.buffers.nbytes + live.nbytes
        assert footprint(model.model, 128, FULL).activations == buffers


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        ({"cache": Evicting(tokens=64)}, "cache", "latents alone: use `cache=contiguous` or `cache=paged`"),
        (
            {"cache": Offload(file="layers")},
            "cache",
            "latents alone: use `cache=contiguous` or `cache=paged`",
        ),
        ({"decoding": Quest()}, "decode", "use `decode=full`"),
        (
            {"latent": "expanded", "cache": Paged(), "attention": "functions"},
            "latent",
            "use `cache=contiguous` and `rows=model`, or leave out `latent`",
        ),
    ],
)
def test_what_does_not_go_with_latents_is_refused_as_it_is_loaded(
    arguments: dict[str, Any], field: str, words: str, bundle: Path, tmp_path: Path
) -> None:
    if isinstance(arguments.get("cache"), Offload):
        arguments = {"cache": Offload(file=str(tmp_path / "layers"))}
    with pytest.raises(ConfigError, match=words) as refused:
        load(bundle, **arguments)
    assert refused.value.field == field


def test_a_policy_that_is_not_for_latents_leaves_the_session_as_it_is(
    bundle: Path, prompt: NDArray[np.int64]
) -> None:
    window = Window(window=3, **SMALL)
    with load(bundle, attention="functions") as model:
        model.prefill(prompt[:60], FULL)
        for policy, words in (
            (Subquadratic(), "not for latent attention"),
            (window, "needs latent attention absorbed: load the bundle with `latent=absorbed`"),
        ):
            with pytest.raises(ConfigError, match=words):
                model.prefill(prompt, policy)
            assert model.length == 60
        model.prefill(prompt, FULL)
        assert model.reused == 60
    with load(bundle, attention="functions", latent="absorbed") as model:
        assert np.isfinite(model.prefill(prompt, window)).all()


def test_heads_that_kernels_do_not_take_are_not_expanded(bundle: Path) -> None:
    model = Manifest.read(bundle).model
    assert model.latent is not None
    odd = model.model_copy(update={"latent": model.latent.model_copy(update={"value_size": 10})})
    with load(bundle, attention="functions") as opened, load(bundle, attention="native") as native:
        for sizes in ({"value_size": 10}, {"nope_size": 12}):  # queries of 12 + 8
            changed = model.model_copy(update={"latent": model.latent.model_copy(update=sizes)})
            assert opened.spec.provider.takes(expanded_shape(changed))
            assert not native.spec.provider.takes(expanded_shape(changed))
        loaded = native.loaded
        parts = loaded.backend, loaded.forward.buffers, 128, native.spec.device, native.spec.cache

        def live(choice: str) -> LiveLayers:
            return Layers(odd, lambda: NativeCpuProvider(1), {"latent": choice}).load(*parts)

        with pytest.raises(ConfigError, match="heads of 24 and 10 elements, which no kernel supports"):
            live("expanded")
        settled = live("auto")
        settled.settle(FULL, 0, 100)
        assert settled.report() == {"latent": "absorbed"}


def test_other_models_have_no_latents(tiny_bundle: Path) -> None:
    with pytest.raises(ConfigError, match="latent is for models with latent attention"):
        load(tiny_bundle, latent="absorbed")


# --- Sizes that kernels do not take ------------------------------------------------------------------------


def test_function_bodies_take_sizes_that_kernels_do_not(
    bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd, cpu, gpu = Mock(), Mock(), Mock()
    cpu.name, gpu.name = "cpu", "cuda"
    odd.manifest.model.attention = replace(Manifest.read(bundle).model.attention, head_size=50)
    odd.manifest.model.configure_mock(lends_rows=False, layer_embedding=0)
    made: Any = provider_factory("auto", odd, cpu, 1)
    assert made.func is FunctionProvider
    assert caplog.messages[-1].startswith("no kernel takes keys of 50 and values of 32 elements")
    with pytest.raises(ConfigError, match=r"no kernel takes keys of 50.*: use `attention=functions`"):
        provider_factory("native", odd, cpu, 1)
    with pytest.raises(ConfigError, match=r"no kernel takes keys of 50.* on a GPU: use `device=cpu`"):
        provider_factory("auto", odd, gpu, None)


@pytest.mark.parametrize(("d", "dv"), [(8, 4), (16, 12), (12, 8), (8, 6), (4, 4), (24, 2)])
def test_the_sizes_are_those_of_the_kernels(d: int, dv: int) -> None:
    shape = AttentionShape(2, 1, d, 1.0, np.dtype(np.float32), dv)
    provider = NativeCpuProvider(1)
    provider.activate(shape)
    q, k, v = (np.ones((1, heads, size), np.float32) for heads, size in ((2, d), (1, d), (1, dv)))
    with (
        contextlib.nullcontext()
        if provider.takes(shape)
        else pytest.raises(ValueError, match="multiple of 8")
    ):
        provider.run(CACHED_ATTENTION, KV(k, v, 1), q=q, o=np.empty((1, 2, dv), np.float32))
