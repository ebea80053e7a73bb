"""The state of the rule `query`: each tile's memory set, and scratch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.devices import Device, Tensor
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill.h2o.scratch import PartialScratch
from h2o_runtime.policies.prefill.h2o.seen import TileChecks
from h2o_runtime.policies.prefill.policy import SavedState
from h2o_runtime.schedule import Span


@dataclass(frozen=True)
class StoreSizes:
    """Sizes from which the store is allocated.

    heads          Hs, the heads of a layer with their own memory set
    kv_heads       of each layer
    rooms          for each tile, the most keys in its sets, of all heads together; never decreasing
    tiles_at_once  tiles of a logical batch
    candidates     the most that a tile chooses from
    whole          the most past rows that a chunk sees without a choice
    rows           of a logical batch
    capacity       of the cache, in rows
    """

    heads: int
    kv_heads: tuple[int, ...]
    rooms: tuple[int, ...]
    tiles_at_once: int
    candidates: int
    whole: int
    rows: int
    capacity: int

    def nbytes(self, model: ModelSpec) -> int:
        sets = model.layers * sum(self.rooms)
        return (sets + self.listed) * 4 + self.rows * model.query_heads * 8

    @property
    def listed(self) -> int:
        """Candidates of all lists of a logical batch. The heads that share keys share a list."""
        return self.tiles_at_once * self.candidates * min(max(self.kv_heads, default=0), self.heads)


@dataclass(frozen=True)
class Sets:
    """The place of some tiles' memory sets: `count` tiles, `heads` with `memory` keys each.

    `first` is a tile's number. The sets of `skipped` tiles of the same chunk, from tile `first` on, are stored
    before them. Tiles that use all of their room are stored as one array across chunks; tiles with fewer keys are
    one array only inside a chunk.
    """

    first: int
    count: int
    heads: int
    memory: int
    skipped: int = 0

    @property
    def size(self) -> int:
        """Keys in the sets of one tile."""
        return self.heads * self.memory

    def with_skipped(self) -> Sets:
        return Sets(self.first, self.skipped + self.count, self.heads, self.memory)


@dataclass(frozen=True)
class TileGroup:
    """Tiles that choose memory sets in one operator call: of some chunks of a logical batch.

    rows       of all tiles
    numbers    place of their numbers in `QueryStore.past_of_tiles` and `first_of_tiles`
    narrowed   candidates of a tile; 0: the past is not narrowed
    last       the last of them
    """

    chunks: Span
    tiles: tuple[Span, ...]
    rows: Span
    sets: Sets
    numbers: Span
    narrowed: int
    last: LastTile


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

    Tiles are stored in the order of the prompt, each with room for the most keys that it can have. A turn of a
    conversation may begin at any row; its tiles are stored after all tiles that begin before that row.
    """

    def __init__(self, sizes: StoreSizes, model: ModelSpec, device: Device, checks: bool = False) -> None:
        """checks: whether to measure what tiles see; this needs rows in host memory, so not on a GPU."""
        heads, tiles = sizes.heads, len(sizes.rooms)
        super().__init__(sizes.rows, model.query_heads, device)
        self.seen: TileChecks | None = None
        if checks and device.name == "cpu":
            self.seen = TileChecks(model.layers, tiles, heads, heads * sizes.capacity)
        self.last: LastTile | None = None
        self._turn = 0  # rows before a conversation's last turn
        self._before_turn: LastTile | None = None  # the last tile before that turn
        self._numbers: Tensor = device.zeros((2 * tiles,), np.int64)
        self.past_of_tiles: Tensor = self._numbers[:0]
        self.first_of_tiles: Tensor = self._numbers[:0]
        self.groups: dict[
            int, list[TileGroup]
        ] = {}  # of a prompt's batches by first row, the same in every layer
        self.heads, self.layers = heads, model.layers
        self._places = np.cumsum((0, *sizes.rooms))  # where each tile's sets begin, in the array of a layer
        self._sets: Tensor = device.zeros((model.layers, int(self._places[-1])), np.int32)
        self._kv_heads = sizes.kv_heads
        self._candidates: Tensor = device.zeros((sizes.listed,), np.int32)
        self._whole: Tensor = device.zeros((heads * sizes.whole,), np.int32)
        self.whole_past: Tensor = self._whole[:0].reshape(heads, 0)

    def begin(self, past: NDArray[np.int64], first: NDArray[np.int64], whole: Span) -> None:
        """Begin a prompt: `past` [t] are the rows before each new tile's chunk, `first` [t] those before the tile;
        the first chunk sees all rows of `whole`.
        """
        self.groups.clear()
        t = len(past)
        self.past_of_tiles, self.first_of_tiles = self._numbers[:t], self._numbers[t : 2 * t]
        self.device.upload(np.concatenate((past, first)), self._numbers[: 2 * t])
        heads = self.heads
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
        """The sets of the first `tiles` tiles."""
        stop = int(self._places[tiles])
        arrays = {f"sets{layer}": self._sets[layer][:stop] for layer in range(self.layers)}
        numbers = LastTile.numbers(self.last, "last") | LastTile.numbers(self._before_turn, "before")
        return SavedState(arrays, numbers | {"turn": self._turn})

    def restore(self, numbers: Mapping[str, int]) -> None:
        """Restore the saved numbers. Raises LookupError if one is missing, ValueError for sets that do not
        exist.
        """
        last, before = (LastTile.of_numbers(numbers, prefix) for prefix in ("last", "before"))
        for tile in (last, before):
            if tile and not (self._has(tile.sets) and 0 <= tile.rows.start < tile.rows.stop):
                raise ValueError(f"{tile} lies nowhere")
        self.last, self._before_turn, self._turn = last, before, numbers["turn"]

    def _has(self, where: Sets) -> bool:
        """Whether the store has room for sets of this size at this place."""
        if not (where.first >= 0 < where.memory and 0 < where.count < len(self._places) - where.first):
            return False
        room = self._places[where.first + where.count] - self._places[where.first]
        return where.heads == self.heads and bool(where.count * where.size <= room)

    def sets(self, layer: int, where: Sets) -> Tensor:
        """int32 [count, Hs, memory]."""
        start = int(self._places[where.first]) + where.skipped * where.size
        flat: Tensor = self._sets[layer][start : start + where.count * where.size]
        return flat.reshape(where.count, where.heads, where.memory)

    def host_sets(self, where: Sets) -> NDArray[np.int32]:
        """The sets of all layers, int32 [count, layers, Hs, memory], on the host."""
        found = [self.device.download(self.sets(layer, where)).copy() for layer in range(self.layers)]
        return np.stack(found, axis=1)

    def candidates(self, layer: int, sets: Sets, count: int) -> Tensor:
        """Scratch for the candidates of some tiles in a layer, int32 [tiles, Hl, count]: the heads that share keys
        share a list. Lists of no candidates stand for every row. The scratch grows once if a later prompt has a
        larger batch size.
        """
        lists = min(self._kv_heads[layer], sets.heads)
        entries = sets.count * lists * count
        if entries > self._candidates.shape[0]:
            self._candidates = self.device.zeros((entries,), np.int32)
        return self._candidates[:entries].reshape(sets.count, lists, count)
