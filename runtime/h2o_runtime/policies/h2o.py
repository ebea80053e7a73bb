"""Chunked sparse prefill with heavy hitters.

The heavy-hitter rule is H2O's (Zhang et al., 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative
Inference of Large Language Models"); the fusion of partial softmaxes is online softmax (Milakov and
Gimelshein, 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from h2o_runtime.attention.base import PartialSoftmax
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.manifest import ModelSpec
from h2o_runtime.policies.base import LayerCall
from h2o_runtime.policies.memory import LayerMemory, MemoryStore
from h2o_runtime.reuse import Prefix
from h2o_runtime.schedule import Span, logical_batches, spans, tail_start


@dataclass(frozen=True)
class H2O:
    """Each query attends to its chunk up to itself (Phase 1) and to the memory set of the past (Phase 2).

    The fields are those of `PrefillConfig`. Cost grows with N: every chunk costs S²/2 + S·(L + H) dot
    products a head, whatever came before it.
    """

    chunk_size: int = 1024
    batch_size: int = 4096
    local: int = 256
    heavy: int = 256
    score: Literal["colsum", "window"] = "colsum"
    score_window: int = 64
    score_heads: Literal["kv", "query"] = "kv"
    sink: int = 0
    dense_tail: int = 128

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> MemoryStore:
        heads = model.kv_heads if self.score_heads == "kv" else model.query_heads
        return MemoryStore(
            layers=model.layers,
            heads=heads,
            query_heads=model.query_heads,
            capacity=capacity,
            chunk_size=self.chunk_size,
            local=self.local,
            heavy=self.heavy,
            batch=logical_batch_rows(self.batch_size, self.chunk_size, capacity),
            device=device,
        )

    def attend(self, call: LayerCall, state: MemoryStore) -> None:
        n = len(call.q)
        memory = state.layer(call.layer)
        if call.prefix is Prefix.HISTORY:
            memory.clear_decoded(call.past, call.cache.generated)
        if call.prefix is Prefix.HISTORY and n <= self.chunk_size:
            self._short_turn(call, memory)
            return
        self._recall(call, memory, state)
        tail = tail_start(n, self.dense_tail) if n > self.chunk_size or call.past else n
        for batch in logical_batches(n, self.batch_size, self.chunk_size):
            call.flow.needs(batch.stop)
            partial = state.partial(call.o[batch.start : batch.stop])
            with call.timer.measure("phase1"):
                self._phase1(call, memory, batch, partial)
            call.checkpoint(batch.start)
            for chunk in spans(batch.stop, self.chunk_size, start=batch.start):
                with call.timer.measure("phase2"):
                    self._phase2(
                        call, memory, chunk, partial.rows(chunk.start - batch.start, chunk.stop - batch.start)
                    )
                call.checkpoint(chunk.stop)
            call.flow.finished(min(batch.stop, tail))
        if call.prefix is not Prefix.HISTORY:
            memory.keep_scores(call.past + n)
        if tail < n:
            with call.timer.measure("tail"):
                call.dense_rows(tail, n)
            call.checkpoint(n)
            call.flow.finished(n)

    def _phase1(self, call: LayerCall, memory: LayerMemory, batch: Span, partial: PartialSoftmax) -> None:
        """Attention inside the batch's chunks; column sums go straight into the score of their own rows."""
        rows = slice(call.past + batch.start, call.past + batch.stop)
        call.provider.chunked_intra_attention(
            call.q[batch.start : batch.stop],
            call.k_cache[rows],
            call.v_cache[rows],
            self.chunk_size,
            partial,
            memory.score[rows] if self.score == "colsum" else None,
        )

    def _phase2(self, call: LayerCall, memory: LayerMemory, chunk: Span, partial: PartialSoftmax) -> None:
        """One chunk's step: attend to the memory, fuse, update the scores, select the next memory."""
        q = call.q[chunk.start : chunk.stop]
        start, stop = call.past + chunk.start, call.past + chunk.stop
        if memory.size:
            colsum = memory.colsum if self.score == "colsum" else None
            call.provider.memory_fused_attention(
                q, call.k_cache, call.v_cache, memory.current, partial, colsum
            )
            if colsum is not None:
                memory.add_to_score(colsum)
        if self.score == "window":
            self._vote(call, memory, q, start, stop)
        if chunk.stop < len(call.q):
            call.provider.memory_select(
                memory.score, memory.current, start, stop, self.local, self.sink, memory.scratch
            )
            memory.accept(stop, fresh=call.prefix is not Prefix.HISTORY)

    def _vote(self, call: LayerCall, memory: LayerMemory, q: Tensor, start: int, stop: int) -> None:
        """The last queries of the chunk replace the scores of all they can see of memory and chunk."""
        window = min(self.score_window, stop - start)
        call.provider.candidate_score(
            q[-window:],
            call.k_cache[start:stop],
            call.k_cache,
            memory.current,
            memory.colsum,
            memory.score[start:stop],
        )
        memory.replace_score(memory.colsum)

    def _recall(self, call: LayerCall, memory: LayerMemory, state: MemoryStore) -> None:
        """Set the memory that the first chunk sees."""
        if call.prefix is Prefix.NONE:
            memory.clear()
        elif call.prefix is Prefix.BOUNDARY:
            memory.restore(call.past)
        elif call.past <= self.local + self.heavy:
            memory.hold_all(call.past)
        else:
            memory.clear()
            if call.layer == 0:
                state.favour_generated(call.past, call.cache.generated, self.local, self.heavy)
            score = memory.history_score(call.past)
            call.provider.memory_select(
                score, memory.current, 0, call.past, self.local, self.sink, memory.scratch
            )
            memory.accept(call.past, fresh=False)

    def _short_turn(self, call: LayerCall, memory: LayerMemory) -> None:
        """A conversation's next turn of at most one chunk: everything sees everything.

        No column sums exist for such rows; with a score of 0 they are the first to be forgotten, should a
        later turn be long enough to need a memory.
        """
        n = len(call.q)
        call.flow.needs(n)
        with call.timer.measure("phase1"):
            call.dense_rows(0, n)
        memory.forget_scores(call.past, call.past + n)
        call.checkpoint(n)
        call.flow.finished(n)


def logical_batch_rows(batch_size: int, chunk_size: int, capacity: int) -> int:
    """Most rows that one launch of Phase 1 can have."""
    return min(batch_size // chunk_size * chunk_size, capacity)
