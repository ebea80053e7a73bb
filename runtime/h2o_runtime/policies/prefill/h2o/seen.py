"""How much of its attention a prompt sees: a few rows of each tile are compared with exact attention.

seen    the share of full attention's probability on the keys in the row's own chunk and memory set
missed  the probability of the row's most probable key if it is not among these keys, otherwise 0

Both follow from the states of the sparse and the exact softmax. Attention that is spread over many keys can be
lost with little harm, so a low `seen` says little. If a row misses its most probable key, it lacks a fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.provider import PartialSoftmax
from h2o_runtime.devices import Tensor
from h2o_runtime.operators import MEMORY_FUSED_ATTENTION
from h2o_runtime.policies.prefill.policy import LayerCall, Seen
from h2o_runtime.schedule import Span

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
GOLDEN = (5**0.5 - 1) / 2
TIE = 1e-3  # the largest difference of one key's logit between two kernels


@dataclass(frozen=True)
class Tile:
    """A tile that chose a memory set: `number` in the prompt, `before` it in its chunk so many, `rows` of the
    call, `past` rows before its chunk.
    """

    number: int
    before: int
    rows: Span
    past: int


@dataclass(frozen=True)
class Checks:
    """Rows of some tiles, `counts` of each, and their exact attention. Row 0 is the first tile's."""

    tiles: tuple[Tile, ...]
    counts: tuple[int, ...]
    rows: Int64
    exact: PartialSoftmax

    def compare(self, sparse: PartialSoftmax) -> tuple[Float32, Float32]:
        """For each tile: `seen`, averaged over its rows and heads, and `missed`, averaged over all tiles of its
        chunk. `sparse` is the rows' current state.
        """
        m, l, exact = sparse.m[self.rows], sparse.l[self.rows], self.exact  # [rows, Hq]
        seen = np.minimum(np.exp(m - exact.m) * l / exact.l, 1.0)
        missed = np.where(m < exact.m - TIE, 1.0 / exact.l, 0.0)
        starts = np.cumsum((0, *self.counts[:-1]))
        both = np.stack([seen.mean(axis=1), missed.mean(axis=1)])
        seen, missed = np.add.reduceat(both, starts, axis=1) / self.counts
        chunks, chunk = np.unique([tile.past for tile in self.tiles], return_inverse=True)
        return seen, np.array([missed[chunk == number].mean() for number in range(len(chunks))])[chunk]


def checked_rows(tile: Span, count: int, before: int) -> Int64:
    """At most `count` rows of a tile, one in each of equal parts. before: the number of earlier tiles of its chunk.

    Multiples of the golden ratio are their places in the parts: voting rows, and often the lines of a text,
    follow each other at equal distances, and rows at equal distances can all be of one kind.
    """
    among = min(count, len(tile))
    index = np.arange(among, dtype=np.int64)
    start, stop = index * len(tile) // among, (index + 1) * len(tile) // among
    place = (before * among + index) * GOLDEN % 1.0
    return tile.start + start + (place * (stop - start)).astype(np.int64)


class TileChecks:
    """The measurements of one prompt's tiles, and scratch; in host memory."""

    def __init__(self, layers: int, tiles: int, heads: int, keys: int) -> None:
        """heads: Hs, the number of lists of keys; keys: the most keys in all lists together."""
        self._found = np.full((3, layers, tiles), np.nan, np.float32)  # seen, missed, whether widened
        self._heads = heads
        self._keys = np.empty(keys, np.int32)
        self._room: dict[tuple[str, tuple[int, ...]], NDArray[Any]] = {}

    def begin(self) -> None:
        """A prompt begins."""
        self._found[:] = np.nan

    def note(self, layer: int, tile: Tile, seen: float, missed: float, widened: bool) -> None:
        self._found[:, layer, tile.number] = seen, missed, widened

    def summary(self) -> Seen | None:
        """None where no tile was compared."""
        seen, missed, widened = (values[~np.isnan(values)] for values in self._found)
        if not len(seen):
            return None
        figures = seen.mean(), seen.min(), missed.mean(), missed.max(), widened.mean()
        return Seen(*map(float, figures))

    def checks(self, call: LayerCall, tiles: Sequence[Tile], count: int, inside: PartialSoftmax) -> Checks:
        """Compute exact attention of `count` rows of each tile. inside: the state of all rows from the first tile
        on, over their own chunks only. The result is valid until the next call.
        """
        rows = [checked_rows(tile.rows, count, tile.before) for tile in tiles]
        every = np.concatenate(rows)
        q = self._take("q", call.q, every)
        every -= tiles[0].rows.start
        exact = PartialSoftmax(*(self._take(name, getattr(inside, name), every) for name in "oml"))
        start = 0
        for past, group in groupby(zip(tiles, rows, strict=True), lambda pair: pair[0].past):
            stop = start + sum(len(pairs) for _, pairs in group)
            keys = self._keys[: self._heads * past].reshape(self._heads, past)
            keys[:] = np.arange(past, dtype=np.int32)
            self._attend(call, q[start:stop], keys, exact.rows(start, stop))
            start = stop
        return Checks(tuple(tiles), tuple(map(len, rows)), every, exact)

    def widen(self, call: LayerCall, tile: Tile, memory: Tensor, state: PartialSoftmax) -> None:
        """Add a tile's attention to its whole past except `memory`, int32 [Hs, M], to the state of its rows."""
        heads, seen = memory.shape
        missing = np.ones((heads, tile.past), bool)
        np.put_along_axis(missing, memory, False, axis=1)
        keys = self._keys[: heads * (tile.past - seen)].reshape(heads, -1)
        keys[:] = np.nonzero(missing)[1].reshape(keys.shape)
        self._attend(call, call.q[tile.rows.start : tile.rows.stop], keys, state)

    @staticmethod
    def _attend(call: LayerCall, q: Tensor, keys: Tensor, state: PartialSoftmax) -> None:
        call.provider.run(MEMORY_FUSED_ATTENTION, call.kv, q=q, memory=keys, **state.intra)

    def _take(self, name: str, source: NDArray[Any], rows: Int64) -> NDArray[Any]:
        """Copies of some rows, in scratch that is allocated once per shape."""
        key = name, source.shape[1:]
        room = self._room.get(key)
        if room is None or len(room) < len(rows):
            room = self._room[key] = np.empty((len(rows), *source.shape[1:]), source.dtype)
        return np.take(source, rows, axis=0, out=room[: len(rows)])
