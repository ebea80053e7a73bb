"""Chunked sparse prefill whose memory is chosen by the chunk's own queries.

What earlier chunks needed says little of what this one will; its own queries do. A sample of them is enough,
and few queries with a list of their own need fewer keys than many with one list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.base import PartialSoftmax
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.model import ModelSpec
from h2o_runtime.policies.prefill.base import Kept, LayerCall, PrefillReport, PromptCall
from h2o_runtime.policies.prefill.h2o import H2O, logical_batch_rows
from h2o_runtime.reuse import Prefix, Provenance, Reuse
from h2o_runtime.schedule import Span, logical_batches, spans, tail_start

VOTES_OF_CHUNK = 32  # queries of a chunk that find the candidates among all of its past


class QueryStore:
    """Memory sets of one prompt, and scratch, allocated once for a capacity and a configuration.

    sets  int32 [layers, tiles, Hs, M]: what each tile of queries saw, by its first row / tile. A conversation's
          turn begins anywhere: its tiles follow one another behind all that begin before it.
    """

    def __init__(self, policy: OwnQueries, model: ModelSpec, capacity: int, device: Device) -> None:
        heads, chunks, tiles = policy.store_sizes(model, capacity)
        rows = logical_batch_rows(policy.batch_size, policy.chunk_size, capacity)
        self.device = device
        self.sets: Tensor = device.zeros((model.layers, tiles, heads, policy.memory), np.int32)
        self.last_tile = -1  # the last one that had a memory
        self.every_row: Tensor = device.zeros((1, heads, 0), np.int32)  # the list that is none
        self.candidates: Tensor = device.zeros((chunks, heads, policy.score_candidates), np.int32)
        self.past_of_tiles: Tensor = device.zeros((tiles,), np.int64)
        self.past_of_chunks: Tensor = device.zeros((chunks,), np.int64)
        self._heads = heads
        self._tile = policy.score_tile
        self._short: Tensor = device.zeros((heads * policy.memory,), np.int32)
        self._m: Tensor = device.zeros((rows, model.query_heads), np.float32)
        self._l: Tensor = device.zeros((rows, model.query_heads), np.float32)

    def begin(self, past: int, n: int, chunk_size: int, tile: int, memory: int) -> None:
        """Note where the chunks and tiles of a prompt's n new rows begin, whose first stands at `past`."""
        chunks = past + np.arange(0, n, chunk_size, dtype=np.int64)
        self.device.upload(chunks, self.past_of_chunks[: len(chunks)])
        tiles = past + np.arange(0, n, tile, dtype=np.int64) // chunk_size * chunk_size
        self.device.upload(tiles, self.past_of_tiles[: len(tiles)])
        few = past if past <= memory else 0
        self.whole_past: Tensor = self._short[: self._heads * few].reshape(self._heads, few)
        self.device.upload(np.tile(np.arange(few, dtype=np.int32), (self._heads, 1)), self.whole_past)

    def partial(self, o: Tensor) -> PartialSoftmax:
        """State of a logical batch: o is the layer's output itself, m and l are scratch. o [n, Hq, d].

        The scratch grows when a later prompt comes with a larger batch size, once.
        """
        if len(o) > len(self._m):
            self._m, self._l = (self.device.zeros((len(o), o.shape[1]), np.float32) for _ in range(2))
        return PartialSoftmax(o, self._m[: len(o)], self._l[: len(o)])

    def kept(self, length: int) -> Kept:
        """All sets: what a prompt sees follows from the cached keys, but people ask for them."""
        tiles = length // self._tile + 2
        arrays = {f"sets{layer}": sets[:tiles] for layer, sets in enumerate(self.sets)}
        return Kept(arrays, {"last_tile": self.last_tile})

    def restore(self, numbers: Mapping[str, int]) -> None:
        """The numbers of `kept`."""
        self.last_tile = numbers["last_tile"]

    def host_sets(self, tiles: Sequence[int]) -> NDArray[np.int32]:
        """Sets of some tiles, int32 [layers, len(tiles), Hs, M], on the host."""
        return np.stack([self.device.download(layer)[list(tiles)] for layer in self.sets])


@dataclass(frozen=True)
class OwnQueries(H2O):
    """H2O under `score="query"`: a tile's strided queries choose its memory among all of the past.

    No chunk waits for another, nothing is forgotten for good, and there are no scores to keep: what a prompt that
    goes on from a cached one sees follows from the cached keys alone.

    `score_queries` of a tile's queries score its candidates by their true probabilities, and the candidates around
    those: where a text repeats itself, the queries between two of them look a little further on. Where the past is
    longer than `score_candidates`, a few queries of the whole chunk choose that many for all of its tiles: they
    alone see all of the past, so that what grows with N² is a small share of full attention.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_size % self.score_tile:
            raise ConfigError(
                f"score_tile ({self.score_tile}) must divide chunk_size ({self.chunk_size}): every tile lies in "
                "one chunk",
                field="score_tile",
            )
        if self.score_queries > self.score_tile:
            raise ConfigError(
                f"score_queries ({self.score_queries}) must not exceed score_tile ({self.score_tile}): a tile has "
                "no more queries",
                field="score_queries",
            )
        if self.score_candidates < self.memory:
            raise ConfigError(
                f"score_candidates ({self.score_candidates}) must be at least local + heavy ({self.memory}): the "
                "memory is chosen among them",
                field="score_candidates",
            )

    @classmethod
    def serves(cls, settings: Mapping[str, Any]) -> bool:
        return settings.get("score") == "query"

    @property
    def vote_stride(self) -> int:
        """From one query of a tile that chooses its memory to the next."""
        return max(self.score_tile // self.score_queries, 1)

    @property
    def chunk_stride(self) -> int:
        """From one query of a chunk that finds its candidates to the next."""
        return max(self.chunk_size // VOTES_OF_CHUNK, 1)

    def store_sizes(self, model: ModelSpec, capacity: int) -> tuple[int, int, int]:
        """Hs, and how many chunks and tiles there can be. A turn may begin inside a tile."""
        heads = model.score_heads(self.score_heads)
        return heads, capacity // self.chunk_size + 1, capacity // self.score_tile + 2

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> Any:
        return QueryStore(self, model, capacity, device)

    def begin(self, prompt: PromptCall, state: Any) -> None:
        state.begin(prompt.past, prompt.n, self.chunk_size, self.score_tile, self.memory)
        if prompt.prefix is Prefix.NONE:
            state.last_tile = -1

    def attend(self, call: LayerCall, state: Any) -> None:
        n = len(call.q)
        if call.prefix is Prefix.HISTORY and n <= self.chunk_size:
            self._dense_turn(call)
            return
        tail = tail_start(n, self.dense_tail) if n > self.chunk_size or call.past else n
        first = self._first_chunk(call.needed, tail, n)
        for batch in logical_batches(n, self.batch_size, self.chunk_size):
            call.flow.needs(batch.stop)
            partial = state.partial(call.o[batch.start : batch.stop])
            with call.timer.measure("phase1"):
                self._inside(call, Span(max(batch.start, first), batch.stop), batch, partial)
            call.checkpoint(batch.start)
            for rows in self._alike(call.past, batch):
                with call.timer.measure("phase2"):
                    self._select(call, state, rows)
            for chunk in spans(batch.stop, self.chunk_size, start=batch.start):
                own = partial.rows(chunk.start - batch.start, chunk.stop - batch.start)
                if chunk.start >= first:
                    with call.timer.measure("phase2"):
                        self._remember(call, state, chunk, own)
                call.checkpoint(chunk.stop)
            call.flow.finished(min(batch.stop, tail))
        if tail < n:
            with call.timer.measure("tail"):
                call.dense_rows(tail, n)
            call.checkpoint(n)
            call.flow.finished(n)

    def _dense_turn(self, call: LayerCall) -> None:
        """A conversation's next turn of at most one chunk: everything sees everything."""
        n = len(call.q)
        call.flow.needs(n)
        with call.timer.measure("phase1"):
            call.dense_rows(0, n)
        call.checkpoint(n)
        call.flow.finished(n)

    def _inside(self, call: LayerCall, rows: Span, batch: Span, partial: PartialSoftmax) -> None:
        """Attention inside the chunks of `rows`, those of the batch that are needed."""
        if rows.start >= rows.stop:
            return
        own = slice(rows.start, rows.stop)
        state = partial.rows(rows.start - batch.start, len(batch))
        call.provider.chunked_intra_attention(
            call.q[own], call.k[own], call.v[own], self.chunk_size, state, None
        )

    def _alike(self, past: int, batch: Span) -> Iterator[Span]:
        """Whole chunks of the batch that choose a memory: those that choose among all rows, then the others."""
        chunks = spans(batch.stop, self.chunk_size, start=batch.start)
        choosing = [one for one in chunks if past + one.start > self.memory]
        for listed in (False, True):
            some = [one for one in choosing if (past + one.start > self.score_candidates) is listed]
            if some:
                yield Span(some[0].start, some[-1].stop)

    def _select(self, call: LayerCall, state: Any, rows: Span) -> None:
        """The memory sets of all tiles of some chunks at once."""
        q = call.q[rows.start : rows.stop]
        tiles = slice(rows.start // self.score_tile, -(-rows.stop // self.score_tile))
        candidates, past = state.every_row, state.past_of_tiles[tiles]
        if call.past + rows.start > self.score_candidates:
            chunks = slice(rows.start // self.chunk_size, -(-rows.stop // self.chunk_size))
            candidates = state.candidates[: chunks.stop - chunks.start]
            call.provider.query_select(
                q,
                call.kv,
                state.every_row,
                state.past_of_chunks[chunks],
                self.chunk_size,
                self.chunk_stride,
                1,
                self.chunk_stride // 2,
                self.local,
                self.sink,
                candidates,
            )
        first = self._first_set(call) + tiles.start
        call.provider.query_select(
            q,
            call.kv,
            candidates,
            past,
            self.score_tile,
            self.vote_stride,
            self.chunk_size // self.score_tile,
            self.vote_stride // 2,
            self.local,
            self.sink,
            state.sets[call.layer][first : first + tiles.stop - tiles.start],
        )
        state.last_tile = first + tiles.stop - tiles.start - 1

    def _first_set(self, call: LayerCall) -> int:
        """Which one is that of the call's first row."""
        return -(-call.past // self.score_tile)

    def _remember(self, call: LayerCall, state: Any, chunk: Span, partial: PartialSoftmax) -> None:
        """Attention of one chunk's tiles to their memory, fused into `partial`."""
        past = call.past + chunk.start
        if not past:
            return
        if past <= self.memory:
            q = call.q[chunk.start : chunk.stop]
            call.provider.memory_fused_attention(q, call.kv, state.whole_past, partial, None)
            return
        sets = state.sets[call.layer]
        for tile in spans(chunk.stop, self.score_tile, start=chunk.start):
            memory = sets[self._first_set(call) + tile.start // self.score_tile]
            rows = partial.rows(tile.start - chunk.start, tile.stop - chunk.start)
            call.provider.memory_fused_attention(call.q[tile.start : tile.stop], call.kv, memory, rows, None)

    def after_interruption(self, reuse: Reuse, n: int, before: Provenance) -> Provenance:
        """Nothing of what was there before is changed by a run."""
        if reuse.prefix is Prefix.HISTORY:
            return before.at_turn(reuse.length)
        if reuse.prefix is Prefix.BOUNDARY:
            return Provenance.interrupted(before.config, reuse.length)
        return Provenance()

    def state_bytes(self, model: ModelSpec, context: int) -> int:
        heads, chunks, tiles = self.store_sizes(model, context)
        sets = heads * (model.layers * tiles * self.memory + chunks * self.score_candidates) * 4
        return sets + min(self.batch_size, context) * model.query_heads * 8

    def report(self, state: Any, origin: Provenance) -> PrefillReport:
        """The set of every tile that has a memory, in the order of the prompt."""
        first, stop = self.chunk_size // self.score_tile, -(-origin.prompt // self.score_tile)
        sets = state.host_sets(range(first, max(first, stop))).swapaxes(0, 1)
        last = (
            state.host_sets([state.last_tile])[:, 0] if state.last_tile >= 0 else PrefillReport.empty().last
        )
        return PrefillReport(last, sets)
