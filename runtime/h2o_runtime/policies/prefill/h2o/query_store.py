"""The state of the rule `query`: each tile's memory set, and scratch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.devices import Device, Tensor
from h2o_runtime.model import ModelSpec
from h2o_runtime.policies.prefill.base import SavedState
from h2o_runtime.policies.prefill.h2o.scratch import PartialScratch
from h2o_runtime.policies.prefill.h2o.seen import TileChecks
from h2o_runtime.schedule import Span


@dataclass(frozen=True)
class StoreSizes:
    """heads is Hs; lists is how many heads of each layer have candidates of their own, the others sharing those
    of their group; rooms has the most keys of each tile, which never become fewer; tiles_at_once are those of a
    logical batch; candidates are the most that a tile has, whole the most rows that a chunk sees all of; rows are
    those of a logical batch, capacity is the cache's."""

    heads: int
    lists: tuple[int, ...]
    rooms: tuple[int, ...]
    tiles_at_once: int
    candidates: int
    whole: int
    rows: int
    capacity: int

    @property
    def memory(self) -> int:
        """Most keys of any tile."""
        return self.rooms[-1]

    def nbytes(self, model: ModelSpec) -> int:
        sets = model.layers * sum(self.rooms) * self.heads
        candidates = self.tiles_at_once * self.candidates * (self.heads + self.spread)
        return (sets + candidates) * 4 + self.rows * model.query_heads * 8

    @property
    def spread(self) -> int:
        """Most heads whose candidates are copied for the heads of a group."""
        return max((lists for lists in self.lists if lists < self.heads), default=0)


@dataclass(frozen=True)
class Sets:
    """The place of some tiles' memory sets: `count` tiles, `memory` keys per head.

    They lie behind those of `skipped` tiles, which are of the same chunk and begin with tile `first`.
    Tiles that take all of their room lie as one array; those of fewer keys do so chunk by chunk.
    """

    first: int
    count: int
    memory: int
    skipped: int = 0

    def with_skipped(self) -> Sets:
        return Sets(self.first, self.skipped + self.count, self.memory)


_NUMBERS = ("start", "stop", "first", "count", "memory")


@dataclass(frozen=True)
class LastTile:
    """The last tile that chose a memory set: its rows, and the sets up to it."""

    rows: Span
    sets: Sets

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int], prefix: str) -> LastTile | None:
        """Raises LookupError if one is missing."""
        start, stop, first, count, memory = (numbers[f"{prefix}_{name}"] for name in _NUMBERS)
        return cls(Span(start, stop), Sets(first, count, memory)) if count else None

    @staticmethod
    def numbers(last: LastTile | None, prefix: str) -> dict[str, int]:
        values = (0, 0, 0, 0, 0)
        if last is not None:
            values = (last.rows.start, last.rows.stop, last.sets.first, last.sets.count, last.sets.memory)
        return {f"{prefix}_{name}": value for name, value in zip(_NUMBERS, values, strict=True)}


class QueryStore(PartialScratch):
    """Memory sets of one prompt, and scratch, allocated once for a capacity and a configuration.

    Each tile has room for the most keys that it can have, in the order of the prompt. A conversation's turn begins
    anywhere, and its tiles follow one another behind all that begin before it.
    """

    def __init__(self, sizes: StoreSizes, model: ModelSpec, device: Device, checks: bool = False) -> None:
        """checks: whether to tell what tiles see, where that is in the host's memory."""
        heads, tiles = sizes.heads, len(sizes.rooms)
        super().__init__(sizes.rows, model.query_heads, device)
        self.seen: TileChecks | None = None
        if checks and device.name == "cpu":
            self.seen = TileChecks(model.layers, tiles, heads, sizes.capacity)
        self.last: LastTile | None = None
        self._turn = 0  # rows that a conversation's last turn found,
        self._before_turn: LastTile | None = None  # and the last tile then
        self._past: Tensor = device.zeros((tiles,), np.int64)
        self.past_of_tiles: Tensor = self._past[:0]
        self.heads = heads
        self._places = heads * np.cumsum((0, *sizes.rooms))  # of each tile's set in those of a layer
        self._sets: Tensor = device.zeros((model.layers, int(self._places[-1])), np.int32)
        self._lists, self._spread = sizes.lists, sizes.spread
        entries = sizes.tiles_at_once * sizes.candidates
        self._candidates: Tensor = device.zeros((entries * heads,), np.int32)
        self._narrowed: Tensor = device.zeros((entries * sizes.spread,), np.int32)
        self._whole: Tensor = device.zeros((heads * sizes.whole,), np.int32)
        self.whole_past: Tensor = self._whole[:0].reshape(heads, 0)

    def begin(self, past: NDArray[np.int64], whole: Span) -> None:
        """A prompt's new tiles have `past` [t] rows before their chunks; its first chunk sees all of `whole`."""
        self.past_of_tiles = self._past[: len(past)]
        self.device.upload(past, self.past_of_tiles)
        self.whole_past = self._whole[: self.heads * len(whole)].reshape(self.heads, len(whole))
        rows = np.arange(whole.start, whole.stop, dtype=np.int32)
        self.device.upload(np.tile(rows, (self.heads, 1)), self.whole_past)

    def forget_checks(self) -> None:
        """A prompt begins; no tile has been compared yet."""
        if self.seen is not None:
            self.seen.begin()

    def begin_turn(self, past: int) -> None:
        """A conversation's turn begins after `past` rows; 0 if it is not a turn.

        If the last turn is repeated, its tiles are no longer the last ones.
        """
        if past and past == self._turn:
            self.last = self._before_turn
        self._turn, self._before_turn = past, self.last

    def saved_state(self, tiles: int) -> SavedState:
        """Sets of so many tiles."""
        stop = int(self._places[tiles])
        arrays = {f"sets{layer}": self._sets[layer][:stop] for layer in range(len(self._sets))}
        numbers = LastTile.numbers(self.last, "last") | LastTile.numbers(self._before_turn, "before")
        return SavedState(arrays, numbers | {"turn": self._turn})

    def restore(self, numbers: Mapping[str, int]) -> None:
        """Restore the saved numbers. Raises LookupError if one is missing, ValueError for sets that do not
        exist.
        """
        last, before = (LastTile.of_numbers(numbers, prefix) for prefix in ("last", "before"))
        for one in (last, before):
            if one and not (self._has(one.sets) and 0 <= one.rows.start < one.rows.stop):
                raise ValueError(f"{one} lies nowhere")
        self.last, self._before_turn, self._turn = last, before, numbers["turn"]

    def _has(self, where: Sets) -> bool:
        """Whether there is room for such sets there."""
        if not (where.first >= 0 < where.memory and 0 < where.count < len(self._places) - where.first):
            return False
        room = self._places[where.first + where.count] - self._places[where.first]
        return bool(where.count * self.heads * where.memory <= room)

    def sets(self, layer: int, where: Sets) -> Tensor:
        """int32 [count, Hs, memory]."""
        tile = self.heads * where.memory
        start, entries = int(self._places[where.first]) + where.skipped * tile, where.count * tile
        flat: Tensor = self._sets[layer][start : start + entries]
        return flat.reshape(where.count, self.heads, where.memory)

    def host_sets(self, where: Sets) -> NDArray[np.int32]:
        """Of all layers, int32 [count, layers, Hs, memory], on the host."""
        layers = range(len(self._sets))
        found = [self.device.download(self.sets(layer, where)).copy() for layer in layers]
        return np.stack(found, axis=1)

    def every_row(self, heads: int) -> Tensor:
        """The list that is none, int32 [1, heads, 0]."""
        none: Tensor = self._candidates[:0]
        return none.reshape(1, heads, 0)

    def narrowed(self, layer: int, tiles: int, count: int) -> Tensor:
        """Scratch for the candidates of some tiles in a layer, int32 [tiles, Hkv or Hs, count]. It grows when a
        later prompt comes with a larger batch size, once."""
        entries = tiles * self.heads * count
        if entries > self._candidates.shape[0]:
            self._candidates = self.device.zeros((entries,), np.int32)
            self._narrowed = self.device.zeros((tiles * self._spread * count,), np.int32)
        heads = self._lists[layer]
        scratch = self._narrowed if heads < self.heads else self._candidates
        return scratch[: tiles * heads * count].reshape(tiles, heads, count)

    def candidates(self, narrowed: Tensor) -> Tensor:
        """`narrowed` for all heads that choose, int32 [tiles, Hs, count]."""
        tiles, heads, count = narrowed.shape
        if heads == self.heads:
            return narrowed
        spread: Tensor = self._candidates[: tiles * self.heads * count].reshape(tiles, self.heads, count)
        self.device.spread(narrowed, spread)
        return spread
