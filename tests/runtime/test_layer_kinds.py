"""A model whose layers alternate two kinds: grouped queries, and a toy with another key head count and buffers.

An ordinary model computes the same where the toy's one key head stands for all: it is the float64 reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tests import bundles
from tests.prefill import prefill_of
from tests.reference import checkpoints, llama

from h2o_export.architecture.delta import DeltaConfig
from h2o_export.architecture.families import FAMILIES
from h2o_export.architecture.latent import LatentConfig
from h2o_export.architecture.mamba2 import Mamba2Config
from h2o_export.architecture.short_convolution import ConvolutionConfig
from h2o_export.checkpoints import open_checkpoint
from h2o_export.layers import LAYERS as EXPORTED
from h2o_runtime import Generator
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.caches import Contiguous, Evicting, Paged
from h2o_runtime.errors import ConfigError
from h2o_runtime.execution.footprint import footprint
from h2o_runtime.layers import LAYERS
from h2o_runtime.policies.decode import Quest
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query, Subquadratic

pytestmark = pytest.mark.slow

TOYS = Path(__file__).parents[1] / "toys"
LAYER_COUNT, HEADS, SIZE = 4, 2, 32  # of the ordinary model
FULL = Full(batch_size=32)
SPARSE: dict[str, Any] = {"chunk_size": 32, "batch_size": 64, "local": 8, "heavy": 8, "dense_tail": 10}


@pytest.fixture(autouse=True, scope="module")
def toys() -> Iterator[None]:
    """Installed for these tests: a registry looks for entry points once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOYS))
        LAYERS.__dict__.pop("_entries", None)
        yield
    LAYERS.__dict__.pop("_entries", None)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose odd layers have the same key and value in every head."""
    folder = tmp_path_factory.mktemp("plain")
    checkpoints.make_checkpoint(folder, layers=LAYER_COUNT, kv_heads=HEADS, head_dim=SIZE)
    _rewrite(folder, lambda matrix: matrix[:SIZE].repeat(HEADS, 1))
    return folder


@pytest.fixture(scope="module")
def mixed(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the same model with that one key head in odd layers."""
    root = tmp_path_factory.mktemp("mixed")
    folder = root / "checkpoint"
    folder.mkdir()
    for file in plain.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    _rewrite(folder, lambda matrix: matrix[:SIZE])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, "llama", replace(FAMILIES["llama"], layers=("grouped-query", "narrow")))
        return bundles.export(folder, root / "bundle")


def _rewrite(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    for layer in range(1, LAYER_COUNT, 2):
        for name in ("k_proj", "v_proj"):
            key = f"model.layers.{layer}.self_attn.{name}.weight"
            tensors[key] = change(tensors[key]).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def load(bundle: Path, **arguments: Any) -> Generator:
    return Generator.load(bundle, **{"context": 256, "device": "cpu", "threads": 1, **arguments})


@pytest.fixture
def generator(mixed: Path) -> Iterator[Generator]:
    with load(mixed) as opened:
        yield opened


def close(ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    assert np.abs(ours - theirs).max() <= 5e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("attention", ["native", "functions"])
@pytest.mark.parametrize("cache", [Contiguous(), Paged()], ids=["contiguous", "paged"])
def test_prompt_turn_and_steps_are_those_of_the_ordinary_model(
    attention: str, cache: Any, mixed: Path, plain: Path
) -> None:
    """In several tiles, behind a past, and decoded."""
    reference = bundles.reference_model(plain)
    ids = bundles.random_ids(100)
    expected = llama.full_logits(reference, ids)
    with load(mixed, attention=attention, cache=cache) as model:
        close(np.concatenate([rows.copy() for _, rows in model.each_logits(ids[:70], FULL)]), expected[:70])
        close(model.prefill(ids[:90], FULL), expected[89])
        assert model.reused == 70
        for at in range(90, 100):
            close(model.decode(int(ids[at])), expected[at])


@pytest.mark.parametrize("score", ["query", "colsum", "window"])
def test_sparse_prompts_remember_what_the_ordinary_model_does(
    score: str, generator: Generator, plain: Path, tmp_path: Path
) -> None:
    policy = prefill_of(score=score, heads="query", **SPARSE, **({"window": 8} if score == "window" else {}))
    ids = bundles.random_ids(150)
    with load(bundles.export(plain, tmp_path / "bundle")) as ordinary:
        close(generator.prefill(ids, policy), ordinary.prefill(ids, policy))
        for ours, theirs in zip(generator.report().last, ordinary.report().last, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_rows_and_buffers_are_counted_layer_by_layer(mixed: Path, generator: Generator) -> None:
    model = Manifest.read(mixed).model
    assert [spec.kind for spec in model.each_layer] == ["grouped-query", "narrow"] * 2
    assert model.token_bytes == 2 * (HEADS + 1) * 2 * SIZE * 4
    assert generator.session.store.nbytes == Contiguous().store_bytes(model, 256) == 256 * model.token_bytes
    live = generator.loaded.forward.layers
    assert footprint(model, 256, FULL).activations == generator.loaded.forward.buffers.nbytes + live.nbytes
    for dtype in ("float16", "int8"):
        with load(mixed, cache=Contiguous(rows=dtype)) as shorter:  # type: ignore[arg-type]
            assert shorter.session.store.nbytes == shorter.spec.cache.store_bytes(model, 256)
            ids = bundles.random_ids(50)
            ours, exact = shorter.prefill(ids, FULL), generator.prefill(ids, FULL)
            assert np.abs(ours - exact).max() <= 0.1 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"cache": Evicting(tokens=64)}, "use `cache=contiguous` or `cache=paged`"),
        ({"decoding": Quest()}, "use `decode=full`"),
        ({"layers": {"latent": "absorbed"}}, "latent is for models with latent attention"),
    ],
)
def test_what_needs_alike_layers_is_refused_as_it_is_loaded(
    arguments: dict[str, Any], words: str, mixed: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        load(mixed, **arguments)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Subquadratic(), "use `policy=h2o` or `policy=full`"),
        (Query(**SPARSE, heads="kv"), "give each query head a set with heads=query"),
    ],
)
def test_what_needs_alike_layers_leaves_the_session_as_it_is(
    policy: PrefillPolicy[Any], words: str, generator: Generator
) -> None:
    ids = bundles.random_ids(60)
    generator.prefill(ids[:40], FULL)
    with pytest.raises(ConfigError, match=words):
        generator.prefill(ids, policy)
    generator.prefill(ids, FULL)
    assert generator.reused == 40


def test_every_kind_has_both_halves(plain: Path) -> None:
    """The toy's exporting half is an entry point, which is loaded by name. Several may share a half at run time."""
    config = open_checkpoint(str(plain)).config
    latent = LatentConfig(
        rank=16, nope_size=8, rope_size=8, value_size=8, query_rank=None, pairs_in=False, pairs_out=False
    )
    delta = DeltaConfig(key_heads=2, value_heads=2, key_size=64, value_size=64, kernel=4)
    mamba = Mamba2Config(
        heads_of_state=2, groups=1, state_size=64, value_size=64, kernel=4, conv_bias=True, bias=False
    )
    config = replace(config, kind_sizes=(latent, delta, mamba, ConvolutionConfig(kernel=3, biased=False)))
    exported = [kind.spec(config).kind for kind in EXPORTED.values()]
    assert set(LAYERS.names) == {*exported, "narrow", "convolution"}
