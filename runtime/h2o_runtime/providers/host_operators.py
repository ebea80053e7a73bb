"""Operators that move rows and scores in host memory, for providers without kernels for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.devices import Tensor
from h2o_runtime.kv import KV
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import (
    CACHE_APPEND,
    CACHED_ATTENTION,
    CACHED_CANDIDATE_SCORE,
    MEMORY_SELECT,
    MEMORY_STEP,
    SCATTER_SCORES,
    SCORED_ATTENTION,
    STEP_ATTENTION,
)


def quantized(rows: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """rows [n, heads, d] as int8, and their scales [n, heads]: 1/127 of the largest magnitude."""
    scales = np.abs(rows.astype(np.float32)).max(axis=-1) / np.float32(127)
    shares = np.divide(
        rows, scales[..., None], out=np.zeros(rows.shape, np.float32), where=scales[..., None] > 0
    )
    return np.rint(shares).astype(np.int8), scales


def check_scales(kv: KV) -> None:
    """Raises ValueError for integers without scales, and for floats with them."""
    if (kv.k.dtype == np.int8) != (kv.scales is not None):
        raise ValueError("a cache of integers has scales, and no other has")


def contiguous_rows(
    kv: KV, dtype: np.dtype[Any], value_size: int | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """k and v as floats of `dtype`, row i at i: the arrays themselves if possible, otherwise copies of the
    rows in use.

    Values that are stored in keys, `value_size` elements of each, are copied too.
    """
    check_scales(kv)
    if kv.latent:
        k = _contiguous(kv.k, kv.scales and kv.scales[0], kv, dtype)
        return k, np.ascontiguousarray(k[: int(kv.length), :, :value_size])
    k_scales, v_scales = kv.scales or (None, None)
    return _contiguous(kv.k, k_scales, kv, dtype), _contiguous(kv.v, v_scales, kv, dtype)


def _contiguous(
    stored: NDArray[Any], scales: NDArray[Any] | None, kv: KV, dtype: np.dtype[Any]
) -> NDArray[Any]:
    if kv.pages is None and stored.dtype == dtype:
        return stored
    at = kv.places(np.arange(int(kv.length)))
    rows = stored[at] if scales is None else stored[at] * scales[at][..., None]
    return rows.astype(dtype)


def run_on_host(
    provider: AttentionProvider, operator: Operator, kv: KV | None, arguments: dict[str, Any]
) -> None:
    """Run an operator that the provider has no kernel for. Raises ValueError for any other operator."""
    if operator not in _ON_HOST:
        raise ValueError(f"{provider.name} cannot run {operator.name}")
    _ON_HOST[operator](provider, kv, **arguments)


def _cache_append(
    provider: AttentionProvider,
    kv: KV,
    k: NDArray[Any],
    first: int,
    v: NDArray[Any] | None = None,
    at: NDArray[np.int64] | None = None,
) -> None:
    start = first if at is None else int(at[0])
    check_scales(kv)
    rows = kv.places(np.arange(start, start + len(k)))
    stored = kv.tensors
    for name, new in (("k", k), ("v", v)):
        if name not in stored:  # values are stored in keys
            continue
        assert new is not None
        if kv.scales is None:
            stored[name][rows] = new
        else:
            stored[name][rows], stored[f"{name}_scales"][rows] = quantized(new)


def _step_attention(
    provider: AttentionProvider, kv: KV, q: Tensor, k: Tensor, o: Tensor, v: Tensor | None = None
) -> None:
    provider.run(CACHE_APPEND, kv, k=k, v=v, first=int(kv.length) - 1)
    provider.run(CACHED_ATTENTION, kv, q=q, o=o)


def _scored_attention(
    provider: AttentionProvider, kv: KV, q: Tensor, o: Tensor, seen: NDArray[np.float32]
) -> None:
    provider.run(CACHED_ATTENTION, kv, q=q, o=o, window=0)
    nothing = np.empty((seen.shape[1], 0), np.int32)
    length = int(kv.length)
    keys, _ = contiguous_rows(kv, np.dtype(q.dtype))
    votes = {"score_mem": nothing.view(np.float32), "score_chunk": seen[:length]}
    provider.run(CACHED_CANDIDATE_SCORE, kv, q_window=q, k=keys[:length], memory=nothing, **votes)


def _memory_step(
    provider: AttentionProvider,
    kv: KV | None,
    score: NDArray[Any],
    memory: NDArray[Any],
    add: bool,
    start: int,
    stop: int,
    local: int,
    memory_next: NDArray[Any],
    values: NDArray[Any] | None = None,
    last: NDArray[Any] | None = None,
    boundary: NDArray[Any] | None = None,
    scores: NDArray[Any] | None = None,
) -> None:
    if values is not None and values.size:
        _scatter_scores(provider, kv, score, memory, values, add)
    given: dict[str, Any] = {
        "score": score,
        "memory": memory,
        "chunk_range": (start, stop),
        "local": local,
    }
    provider.run(MEMORY_SELECT, None, **given, memory_next=memory_next)
    for copy in (last, boundary):
        if copy is not None:
            copy[:] = memory_next
    if scores is not None:
        scores[:] = score[memory_next.T, np.arange(len(memory_next))].T


def _scatter_scores(
    provider: AttentionProvider,
    kv: KV | None,
    score: NDArray[Any],
    memory: NDArray[Any],
    values: NDArray[Any],
    add: bool,
) -> None:
    chosen = (memory.T, np.arange(len(memory)))
    if add:
        score[chosen] += values.T
    else:
        score[chosen] = values.T


_ON_HOST: dict[Operator, Any] = {
    CACHE_APPEND: _cache_append,
    STEP_ATTENTION: _step_attention,
    SCORED_ATTENTION: _scored_attention,
    MEMORY_STEP: _memory_step,
    SCATTER_SCORES: _scatter_scores,
}
