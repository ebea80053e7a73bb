"""Records which keys of the past a policy shows to which queries, by watching its operator calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention import AttentionProvider, PartialSoftmax
from h2o_runtime.attention.base import each_tile
from h2o_runtime.kv import KV
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import CHUNKED_INTRA_ATTENTION, MEMORY_FUSED_ATTENTION, TILED_MEMORY_ATTENTION
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
    """An attention provider that records the lists of calls that it passes on.

    It needs host memory, where queries are rows of the layer's own, identified by address.
    """

    def __init__(self, provider: AttentionProvider, q: Array) -> None:
        """q [n, Hq, d]: the layer's; all calls use its rows."""
        self._provider, self._q = provider, q
        self._chunks: list[tuple[Span, int]] = []  # rows of a call of Phase 1, and its chunk size
        self._seen: dict[Span, NDArray[np.int32]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def run(self, operator: Operator, kv: KV | None = None, **arguments: Any) -> None:
        if operator is TILED_MEMORY_ATTENTION:
            state = PartialSoftmax(*(arguments[f"{name}_intra"] for name in "oml"))
            assert kv is not None
            each_tile(self, arguments["q"], kv, arguments["memory"], arguments["tile"], state)
            return
        if operator is CHUNKED_INTRA_ATTENTION:
            rows = self._rows(arguments["q"])
            assert rows is not None, "Phase 1 is of the layer's rows"
            self._chunks.append((rows, arguments["chunk_size"]))
        elif operator is MEMORY_FUSED_ATTENTION:
            self._note(self._rows(arguments["q"]), arguments["memory"])
        self._provider.run(operator, kv, **arguments)

    def lists(self) -> list[KeyList]:
        """One list for all rows of a call for keys of the past."""
        return [KeyList(rows, self._chunk_start(rows.start), keys) for rows, keys in self._seen.items()]

    def _note(self, rows: Span | None, keys: NDArray[np.int32]) -> None:
        """Rows may see a second list, which continues the first."""
        if rows is not None:
            before = self._seen.get(rows, keys[:, :0])
            self._seen[rows] = np.concatenate([before, keys], axis=1)

    def _rows(self, q: Array) -> Span | None:
        """None for copies of queries, whose attention is not output."""
        if not np.may_share_memory(q, self._q):
            return None
        start = (q.ctypes.data - self._q.ctypes.data) // self._q.strides[0]
        assert 0 <= start <= len(self._q) - len(q), "queries are rows of the layer's"
        return Span(start, start + len(q))

    def _chunk_start(self, row: int) -> int:
        for rows, size in self._chunks:
            if rows.start <= row < rows.stop:
                return rows.start + (row - rows.start) // size * size
        return row
