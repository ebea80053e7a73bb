"""Attention sinks by h2o_plugins._cuda under the emulation, against float64 NumPy."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.plugins.cuda.model import Array, Model, assert_close, assert_sums_close
from tests.reference import operators

from h2o_runtime.operators import CACHED_ATTENTION, CHUNKED_INTRA_ATTENTION, MEMORY_SELECT, STEP_ATTENTION

SHAPES = [(4, 2, 64, np.float16), (3, 1, 40, np.float32)]


@pytest.fixture(params=SHAPES, ids=str)
def model(emulated_cuda: ModuleType, request: pytest.FixtureRequest) -> Model:
    return Model(emulated_cuda, *request.param)


def sinks_of(model: Model) -> Array:
    """Far below all scores, beside them, and far above."""
    return np.array([-30, 0.5, 2, 9, 1, -1], np.float32)[: model.Hq]


def attention(model: Model, q: Array, k: Array, v: Array, sinks: Array, window: int) -> tuple[Array, ...]:
    """Of the last rows: o, m and l, the sink being one more key of each head, whose value is 0."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, model.Hq // model.Hkv, axis=1) for x in (k, v))
    row, key = np.arange(len(k) - len(q), len(k))[:, None], np.arange(len(k))
    seen = (key <= row) & (key > row - window)
    scores = np.where(seen[:, None], model.scale * np.einsum("nhd,khd->nhk", q, k), -np.inf)
    scores = np.concatenate([scores, np.broadcast_to(sinks[None, :, None], (*scores.shape[:2], 1))], axis=-1)
    m = scores.max(axis=-1)
    p = np.exp(scores - m[..., None])
    l = p.sum(axis=-1)
    return np.einsum("nhk,khd->nhd", p[..., :-1] / l[..., None], v), m, l


@pytest.mark.parametrize("window", [0, 30])
@pytest.mark.parametrize("n", [1, 5, 66])
def test_a_sink_joins_every_row_once(model: Model, n: int, window: int) -> None:
    """Of a cache in one part, and in several."""
    model = Model(model.cuda, model.Hq, model.Hkv, model.d, model.dtype, window=window)
    for length in (n, 400):
        q, k, v = model.rows(n, model.Hq), model.rows(length, model.Hkv), model.rows(length, model.Hkv)
        kv, sinks = model.cache(model.put(k), model.put(v), length), sinks_of(model)
        o = model.put_empty(n, model.Hq, model.d, dtype=model.dtype)
        model.run(CACHED_ATTENTION, kv, q=model.put(q), o=o, sinks=model.put(sinks))
        expected, *_ = attention(model, q, k, v, sinks, window or length)
        assert_close(model.get(o), expected, half=model.half)


def test_a_step_that_appends_its_row(model: Model) -> None:
    for length in (1, 400):
        q, k, v = model.rows(1, model.Hq), model.rows(length, model.Hkv), model.rows(length, model.Hkv)
        new = {"k": model.put(k[-1:]), "v": model.put(v[-1:])}
        expected, *_ = attention(model, q, k, v, sinks_of(model), length)
        k[-1] = v[-1] = np.nan
        o = model.put_empty(1, model.Hq, model.d, dtype=model.dtype)
        kv = model.cache(model.put(k), model.put(v), length)
        model.run(STEP_ATTENTION, kv, q=model.put(q), **new, o=o, sinks=model.put(sinks_of(model)))
        assert_close(model.get(o), expected, half=model.half)


def test_chunks_and_their_states(model: Model) -> None:
    """Column sums are of probabilities without sinks, as on the CPU."""
    n, chunk, sinks = 21, 8, sinks_of(model)
    q, k, v = model.rows(n, model.Hq), model.rows(n, model.Hkv), model.rows(n, model.Hkv)
    out: dict[str, Any] = {name: model.put_empty(n, model.Hq) for name in ("m", "l")}
    out |= {"o": model.put_empty(n, model.Hq, model.d, dtype=model.dtype)}
    inputs = {"q": model.put(q), "k": model.put(k), "v": model.put(v), "sinks": model.put(sinks)}
    for colsum in (None, model.put_empty(n, model.Hkv)):
        model.run(CHUNKED_INTRA_ATTENTION, chunk_size=chunk, **inputs, **out, colsum=colsum)
        for start in range(0, n, chunk):
            rows = slice(start, min(start + chunk, n))
            expected = attention(model, q[rows], k[rows], v[rows], sinks, chunk)
            assert_close(model.get(out["o"])[rows], expected[0], half=model.half)
            assert_close(model.get(out["m"])[rows], expected[1])
            assert_close(model.get(out["l"])[rows], expected[2])
    sizes = {"chunk_size": chunk, "scale": model.scale, "score_heads": model.Hkv}
    assert_sums_close(model, model.get(colsum), operators.chunked_intra_attention(q, k, v, **sizes)[3])


def test_an_operator_that_shows_no_row_its_own_key_takes_none(model: Model) -> None:
    none = model.put_empty(1, 1)
    with pytest.raises(ValueError, match="memory_select has no argument sinks"):
        model.run(MEMORY_SELECT, score=none, memory=none, chunk_range=(0, 1), local=1, sinks=none)
