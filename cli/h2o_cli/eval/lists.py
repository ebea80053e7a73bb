"""Seeing which keys of the past a policy gives to which queries, from where it asks for them: the operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention import AttentionProvider, PartialSoftmax
from h2o_runtime.attention.base import each_tile
from h2o_runtime.kv import KV
from h2o_runtime.schedule import Span

Array = NDArray[Any]


@dataclass(frozen=True)
class KeyList:
    """Keys that some queries of one layer see beyond their own chunk.

    rows  where the queries stand
    past  where their chunk begins: keys before it are the past
    keys  int32 [Hs, M], a list a score head
    """

    rows: Span
    past: int
    keys: NDArray[np.int32]


class ListWatch:
    """An attention provider that notes the lists of the calls that pass through to another one.

    It sees host memory, where queries are rows of the layer's own, and their addresses say which.
    """

    def __init__(self, provider: AttentionProvider, q: Array) -> None:
        """q [n, Hq, d]: the layer's, of whose rows all calls are."""
        self._provider, self._q = provider, q
        self._chunks: list[tuple[Span, int]] = []  # rows of a call of Phase 1, and its chunk size
        self._seen: list[tuple[Span, NDArray[np.int32]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def chunked_intra_attention(
        self, q: Array, k: Array, v: Array, chunk_size: int, state: PartialSoftmax, colsum: Array | None
    ) -> None:
        self._chunks.append((self._rows(q), chunk_size))
        self._provider.chunked_intra_attention(q, k, v, chunk_size, state, colsum)

    def memory_fused_attention(
        self, q: Array, kv: KV, memory: Array, state: PartialSoftmax, colsum: Array | None
    ) -> None:
        self._seen.append((self._rows(q), memory.copy()))
        self._provider.memory_fused_attention(q, kv, memory, state, colsum)

    def tiled_memory_attention(
        self, q: Array, kv: KV, memory: Array, tile: int, state: PartialSoftmax
    ) -> None:
        each_tile(self, q, kv, memory, tile, state)

    def lists(self) -> list[KeyList]:
        """One for each call for keys of the past."""
        return [KeyList(rows, self._chunk_start(rows.start), keys) for rows, keys in self._seen]

    def _rows(self, q: Array) -> Span:
        start = (q.ctypes.data - self._q.ctypes.data) // self._q.strides[0]
        assert 0 <= start <= len(self._q) - len(q), "queries are rows of the layer's"
        return Span(start, start + len(q))

    def _chunk_start(self, row: int) -> int:
        for rows, size in self._chunks:
            if rows.start <= row < rows.stop:
                return rows.start + (row - rows.start) // size * size
        return row
