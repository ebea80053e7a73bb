"""A decode step as one graph gives what its parts give one by one, and is taken only where it may be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from tests import bundles
from tests.packed_matrices import node_model, session

from h2o_runtime import Generator
from h2o_runtime.caches.cache import Cache
from h2o_runtime.caches.contiguous import Contiguous
from h2o_runtime.caches.evicting import Evicting
from h2o_runtime.caches.paged import Paged
from h2o_runtime.dense_graphs import native
from h2o_runtime.errors import BackendError
from h2o_runtime.kv import KV
from h2o_runtime.kv_entry import kv_entries
from h2o_runtime.names import DensePrecision
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import Full
from h2o_runtime.providers.native import NativeCpuProvider

CONTEXT, PROMPT, STEPS = 160, 70, 40


def load(folder: Path, threads: int = 1, **more: Any) -> Generator:
    return Generator.load(folder, context=CONTEXT, threads=threads, device="cpu", dense_form="native", **more)


def is_whole(generator: Generator) -> bool:
    return generator.loaded.forward.graph(generator.session) is not None


def generated(generator: Generator) -> tuple[NDArray[np.float32], list[dict[str, NDArray[Any]]]]:
    """Logits of a prompt's end and of steps behind it, a second turn among them; and what is in the cache then."""
    with generator:
        tokens = np.random.default_rng(0).integers(2, 250, PROMPT + STEPS + 9).tolist()
        logits = [np.array(generator.prefill(tokens[:PROMPT]))]
        logits += [np.array(generator.decode(token)) for token in tokens[PROMPT:-9]]
        logits += [np.array(generator.prefill(tokens[:-1])), np.array(generator.decode(tokens[-1]))]
        caches = generator.session.store.fixed_rows()
        assert caches is not None
        return np.array(logits), [rows.stored_rows(PROMPT + STEPS + 9) for rows in caches]


@pytest.mark.parametrize("cache", [Contiguous, Paged])
@pytest.mark.parametrize("dtype", ["model", "float16", "int8"])
@pytest.mark.parametrize(("shape", "weights"), [("llama-g2-d64-llama3", "int8"), ("qwen2-g4-d32", "")])
def test_it_gives_what_its_parts_give(
    shared_folder: Path, shape: str, weights: str, dtype: Any, cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"weights": weights} if weights else {}
    folder = bundles.named(shared_folder, shape, f"-{weights}" if weights else "", **more)[1]
    whole, its_cache = generated(load(folder, threads=2, cache=cache(rows=dtype)))
    monkeypatch.setattr(
        NativeCpuProvider, "in_graphs", property(lambda _: False, lambda *_: None), raising=False
    )
    parts, their_cache = generated(load(folder, cache=cache(rows=dtype)))
    # A cache that rounds turns the smallest difference into a step of its own.
    close = 1e-5 if dtype == "model" else 1e-3
    np.testing.assert_allclose(whole, parts, atol=close * np.abs(parts).max())
    for ours, theirs in zip(its_cache, their_cache, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            step = 1 if ours[name].dtype == np.int8 else 1e-3 * np.abs(theirs[name]).max()
            np.testing.assert_allclose(
                ours[name].astype(np.float64), theirs[name].astype(np.float64), atol=step
            )


@pytest.mark.parametrize(
    ("cache", "more", "taken"),
    [
        (Contiguous(), {}, True),
        (Contiguous(), {"decoding": Quest(budget=16)}, False),
        (Paged(), {}, True),
        (Evicting(tokens=128), {}, False),
    ],
)
def test_it_is_taken_where_a_step_is_plain(
    shared_folder: Path, cache: Cache, more: dict[str, Any], taken: bool
) -> None:
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3")[1]
    with load(folder, cache=cache, **more) as generator:
        generator.prefill([1, 2, 3])
        generator.decode(4)
        assert is_whole(generator) == taken
        assert (generator.loaded.forward.one_row_because(generator.session) is None) == taken


def test_graphs_of_onnx_runtimes_own_products_run_one_by_one(shared_folder: Path) -> None:
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3")[1]
    with Generator.load(folder, context=16, threads=1, device="cpu", dense_form="exact") as generator:
        generator.prefill([1, 2, 3])
        generator.decode(4)
        assert not is_whole(generator)


def test_a_closed_generator_keeps_no_session(shared_folder: Path) -> None:
    generator = load(bundles.named(shared_folder, "llama-g2-d64-llama3")[1])
    assert generator.loaded.forward._graph  # made at loading, so that no answer waits for it
    generator.close()
    assert not generator.loaded.forward._graph
    assert not generator.loaded.backend._native_graphs  # type: ignore[attr-defined]


def test_a_failure_says_where(shared_folder: Path) -> None:
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3")[1]
    with load(folder) as generator:
        generator.prefill([1, 2, 3])
        generator.decode(4)
        length, generator.session.length = generator.session.length, CONTEXT
        with pytest.raises(BackendError, match=r"decode step.*StepAttention: the cache has no such row"):
            generator.loaded.forward.decode(4, generator.session)
        generator.session.length = length
        assert np.isfinite(generator.decode(5)).all()


def attention(
    rows: int = 8, layer: int = 0, **changed: tuple[int, ...]
) -> Callable[..., NDArray[np.float32]]:
    """One StepAttention of a cache of so many rows, by the lengths that it is given."""
    sizes: dict[str, tuple[int, ...]] = {
        "q": (2, 4, 16),
        "k": (2, 2, 16),
        "v": (2, 2, 16),
        "caches": (2, 1, 64),
    } | changed
    draw = np.random.default_rng(0)
    k, v = draw.standard_normal((2, rows, 2, 16)).astype(np.float32)
    arrays: dict[str, Any] = {
        name: draw.standard_normal(sizes[name]).astype(np.float32) for name in ("q", "k", "v")
    }
    entry = kv_entries([KV(k, v, 0)])[0]
    arrays["caches"] = np.resize(entry, sizes["caches"])
    inputs = ["q", "k", "v", "lengths", "caches"]
    types = {"caches": TensorProto.UINT8, "lengths": TensorProto.INT64}
    settings = {"layer": layer, "scale": 0.25, "softcap": 0.0, "window": 0, "threads": 1}
    step = session(node_model("StepAttention", inputs, ["o"], {}, types, **settings))

    def run(*lengths: int) -> NDArray[np.float32]:
        o: NDArray[np.float32] = step.run(None, arrays | {"lengths": np.array(lengths)})[0]
        assert k is not v  # they live as long as their addresses are used
        return o

    return run


@pytest.mark.parametrize("lengths", [(0, 1), (8, 9), (-1, 4)])
def test_a_length_that_the_cache_has_not_is_refused(lengths: tuple[int, int]) -> None:
    with pytest.raises(Exception, match="the cache has no such row"):
        attention()(*lengths)


@pytest.mark.parametrize(
    "changed",
    [
        {"k": (1, 2, 16)},
        {"v": (2, 3, 16)},
        {"q": (2, 4, 24)},
        {"q": (3, 4, 16)},
        {"caches": (1, 1, 64)},
        {"caches": (2, 1, 56)},
        {"layer": 1},
    ],
)
def test_sizes_that_disagree_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="sizes do not agree"):
        attention(**changed)(3, 4)


def test_more_rows_than_kernels_take_are_refused() -> None:
    sizes: dict[str, Any] = {"q": (17, 4, 16), "k": (17, 2, 16), "v": (17, 2, 16), "caches": (17, 1, 64)}
    with pytest.raises(Exception, match="sizes do not agree"):
        attention(32, **sizes)(*range(1, 18))


@pytest.mark.skipif(not native.can_widen(), reason="no such products here")
def test_only_prompts_make_bfloat16_of_integers(shared_folder: Path) -> None:
    """A prompt's error is smaller than with integers, and its bits are the same for one row and for many."""
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3", "-int8", weights="int8")[1]
    tokens = np.random.default_rng(0).integers(2, 250, PROMPT)

    def answers(precision: DensePrecision) -> NDArray[np.float32]:
        with load(folder, threads=2, dense_precision=precision) as generator:
            assert is_whole(generator)
            prompt = generator.prefill(tokens, Full()).copy()
            generator.reset()
            generator.prefill(tokens[:-1], Full())
            np.testing.assert_array_equal(generator.prefill(tokens, Full()), prompt)
            return np.array([prompt, generator.decode(3)])

    widened, integers = answers("bfloat16"), answers("float32")
    with Generator.load(folder, context=CONTEXT, device="cpu", dense_form="exact") as generator:
        exact = np.array([generator.prefill(tokens, Full()).copy(), generator.decode(3)])
    assert np.linalg.norm(widened[0] - exact[0]) < np.linalg.norm(integers[0] - exact[0])
    assert np.linalg.norm(widened[1] - exact[1]) <= 0.05 * np.linalg.norm(exact[1])
