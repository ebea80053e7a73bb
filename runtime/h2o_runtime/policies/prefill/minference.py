"""Vertical-slash prefill: every query head attends to the columns and diagonals that matter to it.

Jiang et al., 2024, "MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via Dynamic Sparse
Attention": attention of long prompts concentrates on a few columns and diagonals of the matrix, and a
prompt's last queries show which. Here the last queries of every chunk choose them, so that no row depends on
a later one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from h2o_runtime.attention.provider import Int32
from h2o_runtime.caches.reuse import Prefix, Provenance, Reuse
from h2o_runtime.components.options import option
from h2o_runtime.devices import Device
from h2o_runtime.errors import ConfigError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import VERTICAL_SLASH_ATTENTION, VERTICAL_SLASH_SELECT
from h2o_runtime.policies.prefill.policy import LayerCall, PrefillPolicy, SavedState, chunk_option
from h2o_runtime.schedule import Span, rows_of_chunks, spans

VOTES = 64  # last queries that choose the lines
TILE = 64  # rows that see the same blocks of keys
SINK, NEAR = 30, 100  # columns and distances that are always selected
LEAST_COLUMNS, LEAST_DISTANCES = 30, 50
SHARE_OF_COLUMNS, SHARE_OF_DISTANCES = 0.2, 0.8  # of a budget that is a fraction of the keys


class LineStore:
    """The lines of one layer's chunk, for every query head."""

    def __init__(self, heads: int, columns: int, distances: int, device: Device) -> None:
        self._heads = heads
        self._columns: Int32 = device.zeros((heads * columns,), np.int32)
        self._distances: Int32 = device.zeros((heads * distances,), np.int32)

    def lines(self, columns: int, distances: int) -> tuple[Int32, Int32]:
        """Room for this many: int32 [Hq, columns], [Hq, distances]."""
        return (
            self._columns[: self._heads * columns].reshape(self._heads, columns),
            self._distances[: self._heads * distances].reshape(self._heads, distances),
        )


@dataclass(frozen=True)
class VerticalSlash(PrefillPolicy[LineStore]):
    """The last queries of each chunk choose the lines, and all of its rows attend to them, in tiles."""

    name: ClassVar[str] = "minference"
    title: ClassVar[str] = "columns and diagonals"
    phases: ClassVar[tuple[str, ...]] = ("estimate", "attention")
    only_on_cpu: ClassVar[str] = (
        "`policy=minference` took 5 times as long as `policy=full` on a GPU, where `policy=h2o score=window` "
        "is the fastest"
    )

    chunk_size: int = chunk_option()
    vertical: int = option(
        512, "Columns that a head sees: keys to which many queries attend.", least=1, without="fraction"
    )
    slash: int = option(
        1024,
        "Diagonals that a head sees: distances at which many queries attend.",
        least=1,
        without="fraction",
    )
    fraction: float = option(
        0.0,
        "Columns and diagonals as a fraction of the earlier keys, instead of counts; 0 uses the counts.",
        least=0,
    )
    estimate: Literal["chunk", "prompt"] = option(
        "chunk",
        "Whose last queries choose columns and diagonals: each chunk's, or the whole prompt's as published. With "
        "prompt, early rows depend on later ones.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fraction > 1:
            raise ConfigError(
                f"fraction ({self.fraction:g}) must be at most 1, which is all keys",
                field="fraction",
            )

    def line_counts(self, keys: int) -> tuple[int, int]:
        """The number of columns and diagonals for this many keys."""
        columns, distances = self.vertical, self.slash
        if self.fraction:
            lines = int(self.fraction * keys)
            columns = max(LEAST_COLUMNS + 1, int(SHARE_OF_COLUMNS * lines))
            distances = max(NEAR + 1, int(SHARE_OF_DISTANCES * lines))
        return min(keys, max(columns, LEAST_COLUMNS)), min(keys, max(distances, LEAST_DISTANCES))

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> LineStore:
        return LineStore(model.query_heads, *self.line_counts(capacity), device)

    def attend(self, call: LayerCall, state: LineStore) -> None:
        n = len(call.q)
        whole = self.estimate == "prompt"
        if whole:
            call.flow.needs(n)
            with call.timer.measure("estimate"):
                lines = self._find(call, n, n, state)
        for chunk in self._chunks(n):
            call.flow.needs(chunk.stop)
            if chunk.stop > call.needed:
                if not whole:
                    with call.timer.measure("estimate"):
                        lines = self._find(call, len(chunk), chunk.stop, state)
                start = chunk.start + max(0, call.needed - chunk.start) // TILE * TILE
                rows, kv = slice(start, chunk.stop), call.kv.upto(call.past + chunk.stop)
                with call.timer.measure("attention"):
                    columns, distances = lines
                    call.provider.run(
                        VERTICAL_SLASH_ATTENTION,
                        kv,
                        q=call.q[rows],
                        columns=columns,
                        distances=distances,
                        o=call.o[rows],
                    )
            call.checkpoint(chunk.stop)
            call.flow.finished(chunk.stop)

    def _chunks(self, n: int) -> Iterator[Span]:
        """The rows that attend at once. Rows with the same lines form whole tiles."""
        size = self.chunk_size
        return spans(n, size if self.estimate == "chunk" else -(-size // TILE) * TILE)

    def _find(self, call: LayerCall, rows: int, stop: int, state: LineStore) -> tuple[Int32, Int32]:
        """Chosen by the last of the `rows` rows before row `stop`."""
        kv = call.kv.upto(call.past + stop)
        lines = state.lines(*self.line_counts(call.past + stop))
        votes = call.q[stop - min(VOTES, rows) : stop]
        columns, distances = lines
        call.provider.run(
            VERTICAL_SLASH_SELECT, kv, q=votes, sink=SINK, near=NEAR, columns=columns, distances=distances
        )
        return lines

    def cuts(self, n: int, reuse: Reuse, rows: int) -> Sequence[int]:
        """Between chunks, unless the prompt's last queries find the lines of all."""
        size = rows_of_chunks(rows, self.chunk_size)
        return range(size, n, size) if self.estimate == "chunk" else ()

    def reuse(self, shared: int, cached: int, n: int, origin: Provenance) -> Reuse:
        """All rows of a conversation that continues; otherwise whole chunks, whose lines do not depend on
        later rows.
        """
        if shared == cached < n and origin.complete:
            return Reuse(Prefix.HISTORY, shared)
        boundary = min(shared, origin.sparse, n - 1) // self.chunk_size * self.chunk_size
        return Reuse(Prefix.BOUNDARY, boundary) if boundary else Reuse(Prefix.NONE, 0)

    def lasting_rows(self, n: int) -> int:
        return n // self.chunk_size * self.chunk_size if self.estimate == "chunk" else 0

    def saved_state(self, state: LineStore, length: int) -> SavedState:
        """No state: every chunk chooses its lines again."""
        return SavedState({}, {})

    def state_bytes(self, model: ModelSpec, context: int) -> int:
        return 4 * model.query_heads * sum(self.line_counts(context))

    def budget(self, n: int) -> dict[str, int]:
        return {"chunk_size": self.chunk_size}

    def visible_pairs(self, n: int) -> int:
        """An upper bound: where a column and a diagonal meet, they count once. Tiles compute more than the
        lines need.
        """
        return sum(self._pairs(chunk, chunk.start, n) for chunk in self._chunks(n))

    def last_layer_pairs(self, n: int) -> int:
        *_, chunk = self._chunks(n)
        return self._pairs(chunk, chunk.start + (n - 1 - chunk.start) // TILE * TILE, n)

    def _pairs(self, chunk: Span, start: int, n: int) -> int:
        """Of the chunk's rows from `start` on."""
        lines = sum(self.line_counts(chunk.stop if self.estimate == "chunk" else n))
        return int(np.minimum(np.arange(start, chunk.stop) + 1, lines).sum())

    def counts(self, n: int) -> dict[str, int]:
        return {"chunks": -(-n // self.chunk_size), "memory_size": 0}

    def summary(self) -> str:
        if self.fraction:
            return f"Columns and diagonals, {self.fraction:.0%} of keys"
        return f"{self.vertical:,} columns, {self.slash:,} diagonals"
