"""Moving single rows and scores in the host's memory, for all providers that work there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.base import AttentionProvider, NextMemory
from h2o_runtime.devices import Tensor
from h2o_runtime.kv import KV


def quantized(rows: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """rows [n, heads, d] as int8, and their scales [n, heads]: 1/127 of the largest magnitude."""
    scales = np.abs(rows.astype(np.float32)).max(axis=-1) / np.float32(127)
    shares = np.divide(
        rows, scales[..., None], out=np.zeros(rows.shape, np.float32), where=scales[..., None] > 0
    )
    return np.rint(shares).astype(np.int8), scales


def check_form(kv: KV) -> None:
    """Raises ValueError for integers without scales, and for floats with them."""
    if (kv.k.dtype == np.int8) != (kv.scales is not None):
        raise ValueError("a cache of integers has scales, and no other has")


def plain_rows(
    kv: KV, dtype: np.dtype[Any], value_size: int | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """k and v as floats of `dtype`, row i at i: themselves where they are that, else copies of rows in use.

    Values that are a part of the keys, `value_size` numbers of each, are copied too.
    """
    check_form(kv)
    if kv.latent:
        k = _plain(kv.k, kv.scales and kv.scales[0], kv, dtype)
        return k, np.ascontiguousarray(k[: int(kv.length), :, :value_size])
    k_scales, v_scales = kv.scales or (None, None)
    return _plain(kv.k, k_scales, kv, dtype), _plain(kv.v, v_scales, kv, dtype)


def _plain(stored: NDArray[Any], scales: NDArray[Any] | None, kv: KV, dtype: np.dtype[Any]) -> NDArray[Any]:
    if kv.pages is None and stored.dtype == dtype:
        return stored
    at = kv.places(np.arange(int(kv.length)))
    rows = stored[at] if scales is None else stored[at] * scales[at][..., None]
    return rows.astype(dtype)


class HostRows:
    """Part of a provider: see `AttentionProvider` for what its methods do."""

    def cache_append(
        self, k: NDArray[Any], v: NDArray[Any] | None, at: int | NDArray[np.int64], kv: KV
    ) -> None:
        first = at if isinstance(at, int) else int(at[0])
        check_form(kv)
        rows = kv.places(np.arange(first, first + len(k)))
        stored = kv.parts
        for name, new in (("k", k), ("v", v)):
            if name not in stored:  # values that are a part of the keys
                continue
            assert new is not None
            if kv.scales is None:
                stored[name][rows] = new
            else:
                stored[name][rows], stored[f"{name}_scales"][rows] = quantized(new)

    def step_attention(
        self: AttentionProvider, q: Tensor, k: Tensor, v: Tensor | None, kv: KV, o: Tensor
    ) -> None:
        self.cache_append(k, v, int(kv.length) - 1, kv)
        self.cached_attention(q, kv, o)

    def scored_attention(self: AttentionProvider, q: Tensor, kv: KV, o: Tensor) -> None:
        assert kv.seen is not None
        self.cached_attention(q, kv, o)
        nothing = np.empty((kv.seen.shape[1], 0), np.int32)
        length = int(kv.length)
        keys, _ = plain_rows(kv, np.dtype(q.dtype))
        self.candidate_score(q, keys[:length], kv, nothing, nothing.view(np.float32), kv.seen[:length])

    def memory_step(
        self: AttentionProvider,
        score: NDArray[Any],
        memory: NDArray[Any],
        values: NDArray[Any] | None,
        add: bool,
        start: int,
        stop: int,
        local: int,
        sink: int,
        into: NextMemory,
    ) -> None:
        if values is not None and values.size:
            self.scatter_scores(score, memory, values, add)
        chosen = into.memory
        self.memory_select(score, memory, start, stop, local, sink, chosen)
        for copy in (into.last, into.boundary):
            if copy is not None:
                copy[:] = chosen
        if into.scores is not None:
            into.scores[:] = score[chosen.T, np.arange(len(chosen))].T

    def scatter_scores(
        self, score: NDArray[Any], rows: NDArray[Any], values: NDArray[Any], add: bool
    ) -> None:
        chosen = (rows.T, np.arange(len(rows)))
        if add:
            score[chosen] += values.T
        else:
            score[chosen] = values.T
