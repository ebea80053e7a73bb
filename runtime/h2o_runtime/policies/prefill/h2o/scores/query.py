"""The score rule `query`: the queries that will see a memory set choose it.

The keys that earlier chunks needed say little about the keys that this chunk needs; its own queries show them. A
query that does not vote may lose the one key that it needs. In the last layers such a loss hardly matters, so there
a sample of queries is enough. A set for few queries needs fewer keys than a set for many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.provider import PartialSoftmax
from h2o_runtime.caches.reuse import Prefix, Provenance, Reuse, same_arithmetic
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import BLOCK_SELECT, MEMORY_FUSED_ATTENTION, QUERY_SELECT, TILED_MEMORY_ATTENTION
from h2o_runtime.policies.prefill.h2o.policy import score_rule
from h2o_runtime.policies.prefill.h2o.query_store import QueryStore, Sets, TileGroup
from h2o_runtime.policies.prefill.h2o.query_tiles import BLOCK, QueryTiles
from h2o_runtime.policies.prefill.h2o.seen import Checks, Tile
from h2o_runtime.policies.prefill.policy import (
    LayerCall,
    PrefillPolicy,
    PrefillReport,
    PromptCall,
    SavedState,
    Seen,
)
from h2o_runtime.schedule import Span, spans

TOLD_LAYERS = 4  # without a guard, one in so many layers is compared, only for the report


@dataclass(frozen=True)
class Query(QueryTiles):
    """The queries of a tile choose its memory set from the whole past: all of them in the first half of the layers,
    evenly spaced ones in the second half.

    Chunks do not depend on each other, no key is lost for later chunks, and no scores are stored. So a prompt that
    continues from a cached one needs only the cached keys.

    Queries vote for candidates with their true probabilities, which also count the query's own chunk: a query that
    mostly attends there has little to say. Where not all vote, they vote for the rows around each candidate too: in
    repetitive text the queries between two voting queries attend to the next rows. If the past is much longer than
    `candidates`, voting queries first narrow it to so many candidates: they score blocks of keys by means and
    variances. Only these stand for the whole past, so the cost that then grows with N² is a small share of full
    attention.

    A tile's memory set depends on its own queries and on keys before it. So a prompt can continue after any whole
    tile.
    """

    score_title: ClassVar[str] = "the queries that will see them"
    scores_tail: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"guarded": {"missed": 0.0025}})

    score: Literal["query"] = score_rule("query")

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> QueryStore:
        return QueryStore(self.store_sizes(model, capacity), model, device, checks=self.checks > 0)

    def start_prompt(self, prompt: PromptCall, state: QueryStore) -> None:
        begun = self.begun(prompt)
        first = prompt.past - begun  # of the first chunk
        chunks = np.arange(first, prompt.past + prompt.n, self.chunk_size, dtype=np.int64)
        new = slice(self.tiles_before(begun), self.tiles_before(begun + prompt.n))
        past = np.repeat(chunks, self.tiles_of_chunk)
        rows = past + np.tile(np.arange(self.tiles_of_chunk) * self.tile_rows, len(chunks))
        whole = Span(0 if first <= self.memory_at(first) else first, prompt.past)
        if self.dense_rows_of(prompt):
            whole = Span(prompt.past, prompt.past)  # they have seen all
        state.begin(past[new], rows[new], whole)
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
        for group in self._groups(call, state, batch):
            sets = state.sets(call.layer, group.sets)
            self._select(call, state, group, sets)
            self._attend_to_sets(call, state, group, sets, first, batch, partial)
            if group.rows.stop < batch.stop:
                call.checkpoint(group.rows.stop)
        call.checkpoint(batch.stop)

    def _groups(self, call: LayerCall, state: QueryStore, batch: Span) -> list[TileGroup]:
        """Found once for all layers: at 4,096 tokens the host is what a GPU waits for."""
        groups = state.groups.get(batch.start)
        if groups is None:
            groups = self.groups(self.begun(call), call.past, batch, state.heads)
            state.groups[batch.start] = groups
        return groups

    def _select(self, call: LayerCall, state: QueryStore, group: TileGroup, sets: Tensor) -> None:
        """Choose the memory sets of a group's tiles in one call: `sets`, int32 [t, Hs, M]."""
        q, own = call.q[group.rows.start : group.rows.stop], slice(group.numbers.start, group.numbers.stop)
        past, rows = state.past_of_tiles[own], state.first_of_tiles[own]
        candidates = state.candidates(call.layer, group.sets, group.narrowed)
        kv, stride = call.kv, self.stride_in(call.layer, state.layers)
        if group.narrowed:
            self._narrow(call, stride, q, past, candidates)
        else:
            kv = kv.cut(self.rows_without_lists)
        self._vote(call, kv, stride, q, past, rows, candidates, sets)
        state.last = group.last

    def _narrow(self, call: LayerCall, stride: int, q: Tensor, past: Tensor, candidates: Tensor) -> None:
        """Queries of each tile score blocks of keys; the keys of the best blocks go to `candidates`, int32
        [t, Hl, Mp]. past int64 [t]: the rows before each tile's chunk.
        """
        call.provider.run(
            BLOCK_SELECT,
            call.kv,
            q=q,
            past=past,
            tile=self.tile_rows,
            stride=stride,
            block_size=BLOCK,
            local=self.local,
            candidates=candidates,
        )

    def _vote(
        self,
        call: LayerCall,
        kv: KV,
        stride: int,
        q: Tensor,
        past: Tensor,
        first: Tensor,
        candidates: Tensor,
        chosen: Tensor,
    ) -> None:
        """Queries of each tile vote for candidates, int32 [t, Hl, Mp]; the best go to `chosen`, int32 [t, Hs, M].
        Without candidates they vote for every row of their past. past, first int64 [t]: the rows before each
        tile's chunk, and before the tile.
        """
        call.provider.run(
            QUERY_SELECT,
            kv,
            q=q,
            candidates=candidates,
            past=past,
            first=first,
            tile=self.tile_rows,
            stride=stride,
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
        group: TileGroup,
        sets: Tensor,
        first: int,
        batch: Span,
        partial: PartialSoftmax,
    ) -> None:
        """Attention of a group's tiles to their memory sets, fused into the batch's state. It is not needed for
        rows before `first`, which begins a chunk."""
        tiles, where, rows = group.tiles, group.sets, group.rows
        if rows.start < first:
            tiles = tuple(one for one in tiles if one.start >= first)
            if not tiles:
                return
            where = self.sets_of_tiles(self.begun(call), call.past, tiles, group.chunks, state.heads)
            rows, sets = Span(tiles[0].start, rows.stop), state.sets(call.layer, where)
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
        """Any row of the first chunks, which see every earlier row. Later the end of a whole tile, or of a
        chunk if the guard decides for whole chunks. Also of a chunk if the cache rounds rows: a chunk attends
        to its own rows before rounding, and these are lost."""
        chunk = super().boundary_before(limit, origin)
        if origin.rounded:
            return chunk
        if limit <= self.first_sparse:
            return limit
        return chunk if self.missed < 1 else chunk + (limit - chunk) // self.tile_rows * self.tile_rows

    def after_interruption(self, reuse: Reuse, n: int, before: Provenance) -> Provenance:
        """A run does not change the sets of earlier tiles."""
        if reuse.prefix is Prefix.HISTORY:
            return replace(before, turn=reuse.length)
        if reuse.prefix is Prefix.BOUNDARY:
            return replace(before, complete=False)
        return Provenance()

    def saved_state(self, state: QueryStore, length: int) -> SavedState:
        """All sets. A prompt does not need them to continue, but the report and the memory view do."""
        return state.saved_state(self.tiles_before(length) + 1)

    def report(self, state: QueryStore, origin: Provenance) -> PrefillReport:
        """The set of every tile that has one, in the order of the prompt; shorter sets are padded with -1."""
        stop = self.lasting_rows(origin.prompt)
        seen_by = tuple(self.tiles(self.first_sparse, stop))
        chunks = spans(stop, self.chunk_size, start=self.first_sparse)
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


# Settings of the default rule by `Device.name`. On an H200 full attention is faster than choosing keys for the
# first 4,096 tokens. By its rates a vote for a key takes nearly as long as attention to it: docs/policies.md.
ON_DEVICE: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"cuda": MappingProxyType({"dense_start": 4096, "queries": 8})}
)


def policy_on_device(policy: PrefillPolicy[Any], device: str) -> PrefillPolicy[Any]:
    """A bundle's policy, or one of flags or a request → that of prompts on a device.

    Settings other than the default rule's hold on every device, and so does a policy that is given from Python.
    """
    settings = ON_DEVICE.get(device)
    if not (settings and isinstance(policy, Query) and same_arithmetic(policy, Query())):
        return policy
    return replace(policy, **settings)
