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
class SetHeads:
    """Hs, the heads of a layer with their own memory set: `least` of them, and `grown` far back."""

    least: int
    grown: int


@dataclass(frozen=True)
class StoreSizes:
    """kv_heads are those of each layer; rooms has the most keys of each tile's sets, of all heads, which never
    become fewer; tiles_at_once are those of a logical batch; candidates are the most that a tile has, whole the
    most rows that a chunk sees all of; rows are those of a logical batch, capacity is the cache's."""

    heads: SetHeads
    kv_heads: tuple[int, ...]
    rooms: tuple[int, ...]
    tiles_at_once: int
    candidates: int
    whole: int
    rows: int
    capacity: int

    def nbytes(self, model: ModelSpec) -> int:
        sets = model.layers * sum(self.rooms)
        candidates = self.tiles_at_once * self.candidates * (self.heads.grown + self.spread)
        return (sets + candidates) * 4 + self.rows * model.query_heads * 8

    @property
    def spread(self) -> int:
        """Most heads whose candidates are copied for the heads of a group."""
        return max((heads for heads in self.kv_heads if heads < self.heads.grown), default=0)


@dataclass(frozen=True)
class Sets:
    """The place of some tiles' memory sets: `count` tiles, `heads` with `memory` keys each.

    They lie behind those of `skipped` tiles, which are of the same chunk and begin with tile `first`.
    Tiles that take all of their room lie as one array; those of fewer keys do so chunk by chunk.
    """

    first: int
    count: int
    heads: int
    memory: int
    skipped: int = 0

    @property
    def size(self) -> int:
        """Of a tile's sets."""
        return self.heads * self.memory

    def with_skipped(self) -> Sets:
        return Sets(self.first, self.skipped + self.count, self.heads, self.memory)


_NUMBERS = ("start", "stop", "first", "count", "heads", "memory")


@dataclass(frozen=True)
class LastTile:
    """The last tile that chose a memory set: its rows, and the sets up to it."""

    rows: Span
    sets: Sets

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int], prefix: str) -> LastTile | None:
        """Raises LookupError if one is missing."""
        start, stop, *sets = (numbers[f"{prefix}_{name}"] for name in _NUMBERS)
        found = Sets(*sets)
        return cls(Span(start, stop), found) if found.count else None

    @staticmethod
    def numbers(last: LastTile | None, prefix: str) -> dict[str, int]:
        values = (0,) * len(_NUMBERS)
        if last is not None:
            rows, sets = last.rows, last.sets
            values = (rows.start, rows.stop, sets.first, sets.count, sets.heads, sets.memory)
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
            self.seen = TileChecks(model.layers, tiles, heads.least, heads.grown * sizes.capacity)
        self.last: LastTile | None = None
        self._turn = 0  # rows that a conversation's last turn found,
        self._before_turn: LastTile | None = None  # and the last tile then
        self._past: Tensor = device.zeros((tiles,), np.int64)
        self.past_of_tiles: Tensor = self._past[:0]
        self.heads = heads
        self._places = np.cumsum((0, *sizes.rooms))  # of each tile's sets in those of a layer
        self._sets: Tensor = device.zeros((model.layers, int(self._places[-1])), np.int32)
        self._kv_heads, self._spread = sizes.kv_heads, sizes.spread
        entries = sizes.tiles_at_once * sizes.candidates
        self._candidates: Tensor = device.zeros((entries * heads.grown,), np.int32)
        self._narrowed: Tensor = device.zeros((entries * sizes.spread,), np.int32)
        self._whole: Tensor = device.zeros((heads.least * sizes.whole,), np.int32)
        self.whole_past: Tensor = self._whole[:0].reshape(heads.least, 0)

    def begin(self, past: NDArray[np.int64], whole: Span) -> None:
        """A prompt's new tiles have `past` [t] rows before their chunks; its first chunk sees all of `whole`."""
        self.past_of_tiles = self._past[: len(past)]
        self.device.upload(past, self.past_of_tiles)
        heads = self.heads.least
        self.whole_past = self._whole[: heads * len(whole)].reshape(heads, len(whole))
        rows = np.arange(whole.start, whole.stop, dtype=np.int32)
        self.device.upload(np.tile(rows, (heads, 1)), self.whole_past)

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
        return where.heads in (self.heads.least, self.heads.grown) and bool(where.count * where.size <= room)

    def sets(self, layer: int, where: Sets) -> Tensor:
        """int32 [count, Hs, memory]."""
        start = int(self._places[where.first]) + where.skipped * where.size
        flat: Tensor = self._sets[layer][start : start + where.count * where.size]
        return flat.reshape(where.count, where.heads, where.memory)

    def host_sets(self, where: Sets) -> NDArray[np.int32]:
        """Of all layers, int32 [count, layers, Hs, memory], on the host."""
        layers = range(len(self._sets))
        found = [self.device.download(self.sets(layer, where)).copy() for layer in layers]
        return np.stack(found, axis=1)

    def every_row(self, heads: int) -> Tensor:
        """The list that is none, int32 [1, heads, 0]."""
        none: Tensor = self._candidates[:0]
        return none.reshape(1, heads, 0)

    def narrowed(self, layer: int, sets: Sets, count: int) -> Tensor:
        """Scratch for the candidates of some tiles in a layer, int32 [tiles, Hkv or Hs, count]: the heads of a
        group share them. It grows when a later prompt comes with a larger batch size, once."""
        tiles, entries = sets.count, sets.count * self.heads.grown * count
        if entries > self._candidates.shape[0]:
            self._candidates = self.device.zeros((entries,), np.int32)
            self._narrowed = self.device.zeros((tiles * self._spread * count,), np.int32)
        heads = min(self._kv_heads[layer], sets.heads)
        scratch = self._narrowed if heads < sets.heads else self._candidates
        return scratch[: tiles * heads * count].reshape(tiles, heads, count)

    def candidates(self, narrowed: Tensor, heads: int) -> Tensor:
        """`narrowed` for all heads that choose, int32 [tiles, heads, count]."""
        tiles, lists, count = narrowed.shape
        if lists == heads:
            return narrowed
        spread: Tensor = self._candidates[: tiles * heads * count].reshape(tiles, heads, count)
        self.device.spread(narrowed, spread)
        return spread
