"""Moving single rows and scores in the host's memory, for all providers that work there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.base import AttentionProvider
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


def plain_rows(kv: KV, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """k and v as floats of `dtype`, row i at i: themselves where they are that, else copies of rows in use."""
    check_form(kv)
    if kv.pages is None and kv.k.dtype == dtype:
        return kv.k, kv.v
    rows = kv.places(np.arange(int(kv.length)))
    if kv.scales is None:
        return kv.k[rows].astype(dtype), kv.v[rows].astype(dtype)
    k_scales, v_scales = kv.scales
    k, v = kv.k[rows] * k_scales[rows][..., None], kv.v[rows] * v_scales[rows][..., None]
    return k.astype(dtype), v.astype(dtype)


class HostRows:
    """Part of a provider: see `AttentionProvider` for what its methods do."""

    def cache_append(self, k: NDArray[Any], v: NDArray[Any], at: int | NDArray[np.int64], kv: KV) -> None:
        first = at if isinstance(at, int) else int(at[0])
        check_form(kv)
        rows = kv.places(np.arange(first, first + len(k)))
        if kv.scales is None:
            kv.k[rows], kv.v[rows] = k, v
            return
        for new, stored, scales in zip((k, v), (kv.k, kv.v), kv.scales, strict=True):
            stored[rows], scales[rows] = quantized(new)

    def scored_attention(self: AttentionProvider, q: Tensor, kv: KV, o: Tensor) -> None:
        assert kv.seen is not None
        self.cached_attention(q, kv, o)
        nothing = np.empty((kv.seen.shape[1], 0), np.int32)
        length = int(kv.length)
        self.candidate_score(q, kv.k[:length], kv, nothing, nothing.view(np.float32), kv.seen[:length])

    def gather_scores(self, score: NDArray[Any], rows: NDArray[Any], out: NDArray[Any]) -> None:
        out[:] = score[rows.T, np.arange(len(rows))].T

    def scatter_scores(
        self, score: NDArray[Any], rows: NDArray[Any], values: NDArray[Any], add: bool
    ) -> None:
        chosen = (rows.T, np.arange(len(rows)))
        if add:
            score[chosen] += values.T
        else:
            score[chosen] = values.T
