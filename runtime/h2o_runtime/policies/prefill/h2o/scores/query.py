"""The score rule `query`: a sample of the queries that will see a memory set chooses it.

The keys that earlier chunks needed say little about the keys that this chunk needs; its own queries show them. A
sample of queries is enough. A set for few queries needs fewer keys than a set for many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.base import PartialSoftmax
from h2o_runtime.caches.reuse import Prefix, Provenance, Reuse
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import BLOCK_SELECT, MEMORY_FUSED_ATTENTION, QUERY_SELECT, TILED_MEMORY_ATTENTION
from h2o_runtime.policies.prefill.base import LayerCall, PrefillReport, PromptCall, SavedState, Seen
from h2o_runtime.policies.prefill.h2o.base import H2O, score_rule
from h2o_runtime.policies.prefill.h2o.query_store import LastTile, QueryStore, Sets
from h2o_runtime.policies.prefill.h2o.query_tiles import BLOCK, NEVER, QueryTiles
from h2o_runtime.policies.prefill.h2o.seen import Checks, Tile
from h2o_runtime.schedule import Span, spans

TOLD_LAYERS = 4  # without a guard, one in so many layers is compared, only for the report


@dataclass(frozen=True)
class Query(QueryTiles):
    """Evenly spaced queries of a tile choose its memory set from the whole past.

    Chunks do not depend on each other, no key is lost for later chunks, and no scores are stored. So a prompt that
    continues from a cached one needs only the cached keys.

    `queries` of a tile's queries vote for candidates with their true probabilities, and also for the rows
    around each candidate: in repetitive text the queries between two voting queries attend to the next rows. If
    the past is longer than `candidates`, voting queries first narrow it to so many candidates: they score means of
    blocks of keys. Only these stand for the whole past, so the cost that grows with N² is a small share of full
    attention.

    A tile's memory set depends on its own queries and on keys before it. So a prompt can continue after any whole
    tile.
    """

    score_title: ClassVar[str] = "the queries that will see them"
    scores_tail: ClassVar[bool] = False
    small: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {**H2O.small, "tile": 64, "queries": 16, "grow": 512}
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"fast": {"chunk_size": 512, "heavy": 192, "grow": NEVER}, "guarded": {"missed": 0.0025}}
    )

    score: Literal["query"] = score_rule("query")

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> QueryStore:
        return QueryStore(self.store_sizes(model, capacity), model, device, checks=self.checks > 0)

    def start_prompt(self, prompt: PromptCall, state: QueryStore) -> None:
        begun = self.begun(prompt)
        first = prompt.past - begun  # of the first chunk
        chunks = np.arange(first, prompt.past + prompt.n, self.chunk_size, dtype=np.int64)
        tiles = np.repeat(chunks, self.tiles_of_chunk)[: self.tiles_before(begun + prompt.n)]
        whole = Span(0 if first <= self.memory_at(first) else first, prompt.past)
        if self.in_first_chunk(prompt):
            whole = Span(prompt.past, prompt.past)  # phase 1 has seen all
        state.begin(tiles[self.tiles_before(begun) :], whole)
        if prompt.prompt_piece.before:
            return  # the first piece has done the rest
        state.forget_checks()
        if prompt.prefix is not Prefix.HISTORY:
            state.last = self.last_tile(
                min(prompt.past, self.lasting_rows(prompt.past + prompt.n)), state.heads
            )
        state.begin_turn(prompt.past if prompt.prefix is Prefix.HISTORY else 0)

    def look_back(
        self, call: LayerCall, state: QueryStore, batch: Span, first: int, partial: PartialSoftmax
    ) -> None:
        if batch.start == 0 and first == 0 and state.whole_past.shape[1]:
            self._see_all(call, state, batch, partial)
        for chunks in self._alike(call, state, batch):
            self._select(call, state, chunks)
            self._attend_to_sets(call, state, chunks, first, batch, partial)
            call.checkpoint(chunks.stop)
        call.checkpoint(batch.stop)

    def _alike(self, call: LayerCall, state: QueryStore, batch: Span) -> Iterator[Span]:
        """Groups of the batch's chunks that choose memory sets, as large as one operator call allows. In a
        group all tiles have the same size, the same number of candidates, keys and votes, and use all of their
        room. The first chunk may begin before row 0."""

        def kind(chunk: Span) -> tuple[int, int, int, int, bool]:
            before = call.past + chunk.start
            candidates, sets = (
                self.candidates_at(before),
                self._sets(call, state, self._new_tiles(chunk), chunk),
            )
            rooms = {self.room(tile, state.heads) for tile in (sets.first, sets.first + sets.count - 1)}
            narrowed = candidates if before > candidates else 0
            return sets.heads, sets.memory, narrowed, self.vote_stride_at(before), {sets.size} == rooms

        start = batch.start or -self.begun(call)
        chunks = spans(batch.stop, self.chunk_size, start=start)
        choosing = (one for one in chunks if self.memory_at(call.past + one.start) < call.past + one.start)
        for (*_, full), group in groupby(choosing, kind):
            some = list(group)
            if full and self.chunk_size % self.tile_rows == 0:
                yield Span(some[0].start, some[-1].stop)
            else:
                yield from some

    def _new_tiles(self, chunks: Span) -> list[Span]:
        """The tiles of some chunks, without those before row 0."""
        return [one for one in self.tiles(chunks.start, chunks.stop) if one.start >= 0]

    def _sets(self, call: LayerCall, state: QueryStore, tiles: Sequence[Span], chunks: Span) -> Sets:
        """Where the sets of `tiles` are stored: tiles of these chunks, with memory sets of one size."""
        begun, past = self.begun(call), call.past + chunks.start
        base = self.tiles_before(call.past - begun)
        first, own = (base + self.tiles_before(begun + row) for row in (chunks.start, tiles[0].start))
        heads = self.heads_at(past, state.heads)
        return Sets(first, len(tiles), heads, self.memory_at(past), own - first)

    def _select(self, call: LayerCall, state: QueryStore, chunks: Span) -> None:
        """Choose the memory sets of all new tiles of some chunks in one call."""
        tiles, before = self._new_tiles(chunks), call.past + chunks.start
        sets, count = self._sets(call, state, tiles, chunks), self.candidates_at(before)
        candidates = state.every_row(sets.heads)
        if before > count:  # one list for all query heads of a group
            narrowed = state.narrowed(call.layer, sets, count)
            self._narrow(call, state, tiles, narrowed)
            candidates = state.candidates(narrowed, sets.heads)
        stride = self.vote_stride_at(before)
        self._vote(call, state, tiles, candidates, stride, state.sets(call.layer, sets))
        rows = Span(call.past + tiles[-1].start, call.past + tiles[-1].stop)
        state.last = LastTile(rows, sets.with_skipped())

    def _narrow(self, call: LayerCall, state: QueryStore, tiles: Sequence[Span], candidates: Tensor) -> None:
        """Queries of each tile score means of keys; the keys of the best blocks go to `candidates`, int32
        [t, Hs, Mp]."""
        call.provider.run(
            BLOCK_SELECT,
            call.kv,
            q=call.q[tiles[0].start : tiles[-1].stop],
            past=self._past_of(call, state, tiles),
            tile=self.tile_rows,
            stride=self.narrowing_stride,
            block_size=BLOCK,
            local=self.local,
            candidates=candidates,
        )

    def _past_of(self, call: LayerCall, state: QueryStore, tiles: Sequence[Span]) -> Tensor:
        """The rows before each tile's chunk, int64 [t]."""
        begun = self.begun(call)
        first = self.tiles_before(begun + tiles[0].start) - self.tiles_before(begun)
        return state.past_of_tiles[first : first + len(tiles)]

    def _vote(
        self,
        call: LayerCall,
        state: QueryStore,
        tiles: Sequence[Span],
        candidates: Tensor,
        stride: int,
        chosen: Tensor,
    ) -> None:
        """Every `stride`-th query of each tile votes for candidates, int32 [t, Hs, Mp]; the best go to `chosen`,
        int32 [t, Hs, M].
        """
        call.provider.run(
            QUERY_SELECT,
            call.kv,
            q=call.q[tiles[0].start : tiles[-1].stop],
            candidates=candidates,
            past=self._past_of(call, state, tiles),
            tile=self.tile_rows,
            stride=stride,
            share=1,
            reach=stride // 2,
            local=self.local,
            memory_next=chosen,
        )

    def _see_all(self, call: LayerCall, state: QueryStore, batch: Span, partial: PartialSoftmax) -> None:
        """Attention of the first chunk to the rows that it sees without a choice: its cached rows, and a short
        past."""
        rows = min(self.chunk_size - self.begun(call), len(batch))
        call.provider.run(
            MEMORY_FUSED_ATTENTION,
            call.kv,
            q=call.q[:rows],
            memory=state.whole_past,
            **partial.rows(0, rows).intra,
        )

    def _attend_to_sets(
        self,
        call: LayerCall,
        state: QueryStore,
        chunks: Span,
        first: int,
        batch: Span,
        partial: PartialSoftmax,
    ) -> None:
        """Attention of some chunks' tiles to their memory sets, all of one size, fused into the batch's state.
        It is not needed for rows before `first`, which begins a chunk."""
        tiles = [one for one in self._new_tiles(chunks) if one.start >= first]
        if not tiles:
            return
        rows, where = Span(tiles[0].start, chunks.stop), self._sets(call, state, tiles, chunks)
        sets = state.sets(call.layer, where)
        own = partial.rows(rows.start - batch.start, rows.stop - batch.start)
        checks = self._checks(call, state, tiles, where, own)  # before the state sees more than its chunks
        call.provider.run(
            TILED_MEMORY_ATTENTION,
            call.kv,
            q=call.q[rows.start : rows.stop],
            memory=sets,
            tile=self.tile_rows,
            **own.intra,
        )
        if checks is not None:
            self._widen(call, state, checks, own, sets)

    def _checks(
        self,
        call: LayerCall,
        state: QueryStore,
        tiles: Sequence[Span],
        where: Sets,
        own: PartialSoftmax,
    ) -> Checks | None:
        """Exact attention of a few rows of the tiles; `own` is the tiles' state. None if this layer is not
        compared.
        """
        if state.seen is None or (self.missed >= 1 and call.layer % TOLD_LAYERS):
            return None
        begun, size, number = self.begun(call), self.chunk_size, where.first + where.skipped
        compared = []
        for i, one in enumerate(tiles):
            chunk, row = divmod(begun + one.start, size)
            compared.append(Tile(number + i, row // self.tile_rows, one, call.past - begun + chunk * size))
        return state.seen.checks(call, compared, self.checks, own)

    def _widen(
        self, call: LayerCall, state: QueryStore, checks: Checks, own: PartialSoftmax, sets: Tensor
    ) -> None:
        """Record what the tiles saw. Tiles that missed too much also attend to the rest of their past.
        sets [t, Hs, M]: the tiles' memory sets.
        """
        assert state.seen is not None, "there are checks"
        for i, (tile, seen, missed) in enumerate(zip(checks.tiles, *checks.compare(own), strict=True)):
            widened = missed > self.missed
            state.seen.note(call.layer, tile, seen, missed, widened)
            if widened:
                first = checks.tiles[0].rows.start
                rows = own.rows(tile.rows.start - first, tile.rows.stop - first)
                state.seen.widen(call, tile, sets[i], rows)

    def seen_share(self, state: QueryStore) -> Seen | None:
        return None if state.seen is None else state.seen.summary()

    def refusal(self, device: str) -> str:
        if device == "cpu" or self.missed >= 1:
            return ""
        return f"missed={self.missed:g}, as the preset guarded sets it, works only on the CPU"

    def reuse(self, shared: int, cached: int, n: int, origin: Provenance) -> Reuse:
        """If the tails of both prompts begin at the same row, also the shared rows of the tail, which saw every
        row."""
        found, tail = super().reuse(shared, cached, n, origin), self.lasting_rows(n)
        if found.prefix is Prefix.HISTORY or not origin.sparse == tail < shared:
            return found
        return Reuse(Prefix.BOUNDARY, min(shared, origin.prompt, n - 1))

    def boundary_before(self, limit: int, origin: Provenance) -> int:
        """Any row of the first chunk, which sees every earlier row. Later the end of a whole tile, or of a
        chunk if the guard decides for whole chunks. Also of a chunk if the cache rounds rows: a chunk attends
        to its own rows before rounding, and these are lost."""
        chunk = super().boundary_before(limit, origin)
        if origin.rounded:
            return chunk
        if limit <= self.chunk_size:
            return limit
        return chunk if self.missed < 1 else chunk + (limit - chunk) // self.tile_rows * self.tile_rows

    def after_interruption(self, reuse: Reuse, n: int, before: Provenance) -> Provenance:
        """A run does not change the sets of earlier tiles."""
        if reuse.prefix is Prefix.HISTORY:
            return before.at_turn(reuse.length)
        if reuse.prefix is Prefix.BOUNDARY:
            return replace(before, complete=False)
        return Provenance()

    def saved_state(self, state: QueryStore, length: int) -> SavedState:
        """All sets. A prompt does not need them to continue, but the report and the memory view do."""
        return state.saved_state(self.tiles_before(length) + 1)

    def report(self, state: QueryStore, origin: Provenance) -> PrefillReport:
        """The set of every tile that has one, in the order of the prompt; shorter sets are padded with -1."""
        stop = self.lasting_rows(origin.prompt)
        seen_by = tuple(self.tiles(self.chunk_size, stop))
        chunks = spans(stop, self.chunk_size, start=self.chunk_size)
        if state.last is None:
            return PrefillReport.empty()
        last = state.host_sets(state.last.sets)[-1]
        none = np.zeros((0, *last.shape), np.int32)
        found = [none, *(state.host_sets(self.sets_of(chunk, state.heads)) for chunk in chunks)]
        return PrefillReport(last, _stacked(found), seen_by, state.last.rows)


def _stacked(sets: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Sets of several sizes as one array [t, layers, Hs, M]. A set that heads share is repeated for each head;
    shorter sets are padded with -1."""
    heads, most = (max(one.shape[axis] for one in sets) for axis in (2, 3))
    alike = [np.repeat(one, heads // one.shape[2], axis=2) for one in sets]
    return np.concatenate(
        [np.pad(one, ((0, 0), (0, 0), (0, 0), (0, most - one.shape[3])), constant_values=-1) for one in alike]
    )
