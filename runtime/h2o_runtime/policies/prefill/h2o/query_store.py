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
    """heads: Hs; chunks, tiles: the most of a prompt; memory, candidates: the most keys of a tile; rows: of a
    logical batch; capacity: of the cache.
    """

    heads: int
    chunks: int
    tiles: int
    memory: int
    candidates: int
    rows: int
    capacity: int

    def nbytes(self, model: ModelSpec) -> int:
        sets = model.layers * self.tiles * self.memory + self.chunks * self.candidates
        return sets * self.heads * 4 + self.rows * model.query_heads * 8


@dataclass(frozen=True)
class Sets:
    """The place of some tiles' memory sets: `count` tiles from `first` on, `memory` keys per head.

    Tiles with the most keys form one array; smaller sets are stored chunk by chunk.
    """

    first: int
    count: int
    memory: int


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

    Each tile has room for a set of the most keys, in the order of the prompt. A conversation's turn may begin
    anywhere; its tiles follow all tiles that begin before it.
    """

    def __init__(self, sizes: StoreSizes, model: ModelSpec, device: Device, checks: bool = False) -> None:
        """checks: whether to measure what tiles see, if they are in host memory."""
        heads = sizes.heads
        super().__init__(sizes.rows, model.query_heads, device)
        self.seen: TileChecks | None = None
        if checks and device.name == "cpu":
            self.seen = TileChecks(model.layers, sizes.tiles, heads, sizes.capacity)
        self.last: LastTile | None = None
        self._turn = 0  # rows at the start of a conversation's last turn,
        self._before_turn: LastTile | None = None  # and the last tile at that time
        self.every_row: Tensor = device.zeros((1, heads, 0), np.int32)  # an empty list
        self._past: Tensor = device.zeros((sizes.tiles + sizes.chunks,), np.int64)
        self.past_of_tiles: Tensor = self._past[:0]
        self.past_of_chunks: Tensor = self._past[:0]
        self._heads = heads
        self._sets: Tensor = device.zeros((model.layers, sizes.tiles, heads * sizes.memory), np.int32)
        self._candidates: Tensor = device.zeros((sizes.chunks * heads * sizes.candidates,), np.int32)
        self._short: Tensor = device.zeros((heads * sizes.memory,), np.int32)
        self.whole_past: Tensor = self._short[:0].reshape(
            heads, 0
        )  # every row before the first chunk, if there are few

    def begin(self, past: int, chunks: NDArray[np.int64], tiles: NDArray[np.int64], whole: bool) -> None:
        """Record the rows before the chunks and tiles of a prompt's new rows, which start at `past`.

        whole: whether the first chunk sees all of them.
        """
        past_of = np.concatenate([tiles, chunks])  # one copy to the device
        self.device.upload(past_of, self._past[: len(past_of)])
        self.past_of_tiles = self._past[: len(tiles)]
        self.past_of_chunks = self._past[len(tiles) : len(past_of)]
        few = past if whole else 0
        self.whole_past = self._short[: self._heads * few].reshape(self._heads, few)
        self.device.upload(np.tile(np.arange(few, dtype=np.int32), (self._heads, 1)), self.whole_past)

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
        """Memory sets of this many tiles."""
        arrays = {f"sets{layer}": self._sets[layer][:tiles] for layer in range(len(self._sets))}
        numbers = LastTile.numbers(self.last, "last") | LastTile.numbers(self._before_turn, "before")
        return SavedState(arrays, numbers | {"turn": self._turn})

    def restore(self, numbers: Mapping[str, int]) -> None:
        """Restore the saved numbers. Raises LookupError if one is missing, ValueError for sets that do not
        exist.
        """
        last, before = (LastTile.of_numbers(numbers, prefix) for prefix in ("last", "before"))
        room = self._short.shape[0] // self._heads
        for one in (last, before):
            if one and not (
                one.sets.first >= 0
                and 0 < one.sets.count <= self._sets.shape[1] - one.sets.first
                and 0 < one.sets.memory <= room
                and 0 <= one.rows.start < one.rows.stop
            ):
                raise ValueError(f"{one} lies nowhere")
        self.last, self._before_turn, self._turn = last, before, numbers["turn"]

    def sets(self, layer: int, where: Sets) -> Tensor:
        """int32 [count, Hs, memory]."""
        entries = where.count * self._heads * where.memory
        room: Tensor = self._sets[layer][where.first : where.first + where.count]
        flat = room.reshape(room.shape[0] * room.shape[1])[:entries]
        return flat.reshape(where.count, self._heads, where.memory)

    def host_sets(self, where: Sets) -> NDArray[np.int32]:
        """Of all layers, int32 [count, layers, Hs, memory], on the host."""
        layers = range(len(self._sets))
        found = [self.device.download(self.sets(layer, where)).copy() for layer in layers]
        return np.stack(found, axis=1)

    def candidates(self, chunks: int, count: int) -> Tensor:
        """Scratch for the candidates of some chunks, int32 [chunks, Hs, count]."""
        return self._candidates[: chunks * self._heads * count].reshape(chunks, self._heads, count)
