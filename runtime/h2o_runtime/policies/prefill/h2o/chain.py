"""Score rules with a chain of memory sets: each is chosen from the previous one and a chunk.

Each token has a score per head. The end of a chunk changes scores, and the best tokens become the next memory
set.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from h2o_runtime.attention.provider import PartialSoftmax
from h2o_runtime.caches.reuse import Prefix, Provenance, Reuse
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import MEMORY_FUSED_ATTENTION, TILED_MEMORY_ATTENTION
from h2o_runtime.policies.prefill.h2o.memory import LayerMemory, MemoryStore
from h2o_runtime.policies.prefill.h2o.policy import H2O
from h2o_runtime.policies.prefill.policy import LayerCall, PrefillReport, PromptCall
from h2o_runtime.schedule import Span, spans


@dataclass(frozen=True)
class MemoryChain(H2O[MemoryStore]):
    """The state of such rules: scores, the memory sets of chunk boundaries, and how to go back to them."""

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> MemoryStore:
        return MemoryStore(
            layers=model.layers,
            heads=self.set_count(model.head_counts),
            query_heads=model.query_heads,
            capacity=capacity,
            chunk_size=self.chunk_size,
            local=self.local,
            heavy=self.memory - self.local,
            batch=self.batch_rows(capacity),
            device=device,
        )

    def start_prompt(self, prompt: PromptCall, state: MemoryStore) -> None:
        if prompt.prompt_piece.before:
            return  # the first piece has already done all of this
        if prompt.prefix is not Prefix.HISTORY:
            state.turn.forget()
            return
        state.turn.begin(prompt.past)
        state.note_generated(prompt.generated)
        long = prompt.n > self.chunk_size or prompt.prompt_piece.more
        if long and prompt.past > self.memory:
            state.favour_generated(prompt.generated, self.local, self.memory - self.local)

    def before_chunks(self, call: LayerCall, state: MemoryStore) -> None:
        memory = state.layer(call.layer, call.provider)
        if call.prompt_piece.before:
            memory.go_on()
        elif call.prefix is Prefix.NONE:
            memory.clear()
        elif call.prefix is Prefix.BOUNDARY:
            memory.restore(call.past)
        else:
            memory.clear_decoded(call.past)
            if call.past <= self.memory:
                memory.hold_all(call.past)
            else:
                memory.recall(call.past, self.local)

    def after_chunks(self, call: LayerCall, state: MemoryStore) -> None:
        if call.prefix is not Prefix.HISTORY:
            state.layer(call.layer, call.provider).keep_scores(call.past + len(call.q))

    def after_short_turn(self, call: LayerCall, state: MemoryStore) -> None:
        """No chunk scores these rows. With a score of 0 they are dropped first, if a later turn is long enough to
        need a memory set.
        """
        memory = state.layer(call.layer, call.provider)
        memory.clear_decoded(call.past)
        memory.forget_scores(call.past, call.past + len(call.q))

    def end_chunk(
        self, call: LayerCall, memory: LayerMemory, chunk: Span, values: Tensor | None, *, add: bool
    ) -> None:
        """End a chunk: `values` [Hs, size] replace the scores of its memory set, or are added to them. Then choose
        the next set.
        """
        if chunk.stop < len(call.q) or call.prompt_piece.more:
            rows = Span(call.past + chunk.start, call.past + chunk.stop)
            memory.step(rows, values, add, self.local, fresh=call.prefix is not Prefix.HISTORY)
        elif values is not None:
            memory.put_scores(values, add)

    def after_interruption(self, reuse: Reuse, n: int, before: Provenance) -> Provenance:
        """The store still has the memory sets of the boundary, and the scores that no chunk has changed."""
        if reuse.prefix is Prefix.HISTORY and n <= self.chunk_size:
            return replace(before, turn=reuse.length)
        if reuse.prefix is Prefix.BOUNDARY:
            return Provenance.interrupted(before.policy, reuse.length)
        return Provenance()

    def state_bytes(self, model: ModelSpec, context: int) -> int:
        heads = self.set_count(model.head_counts)
        sets = (context // self.chunk_size + 1) * heads * self.memory * 8
        scores = model.layers * (3 * context * heads * 4 + sets) + context * heads * 4
        batch = self.batch_rows(context)
        seen = (-(-batch // self.chunk_size) + 1) * heads * self.memory * 4
        return scores + seen + batch * model.query_heads * 8

    def report(self, state: MemoryStore, origin: Provenance) -> PrefillReport:
        passed = max(origin.prompt - 1, 0) // self.chunk_size
        seen_by = tuple(spans(origin.prompt, self.chunk_size, start=self.chunk_size))
        return PrefillReport(state.last_sets(), state.boundary_sets(passed), seen_by)


@dataclass(frozen=True)
class ChosenAhead(MemoryChain):
    """A chain whose scores do not need attention. It first chooses the memory sets of all chunks of a batch, each
    from the previous one. Then one call computes the attention of all chunks to their sets.
    """

    @abstractmethod
    def vote(self, call: LayerCall, memory: LayerMemory, chunk: Span) -> Tensor | None:
        """Write the scores of the chunk's own rows, and return new scores for its memory set, [Hs, size];
        None keeps the old ones.
        """

    def look_back(
        self, call: LayerCall, state: MemoryStore, batch: Span, first: int, partial: PartialSoftmax
    ) -> None:
        memory = state.layer(call.layer, call.provider)
        chunks = list(spans(batch.stop, self.chunk_size, start=batch.start))
        memory.begin_batch(len(chunks))
        before = memory.current
        for chunk in chunks:
            self.end_chunk(call, memory, chunk, self.vote(call, memory, chunk), add=False)
            call.checkpoint(batch.start)
        rows = Span(max(batch.start, first), batch.stop)
        if rows.start == batch.start and before.shape[1] < self.memory:  # nothing, or a short history
            self._see_all(call, before, chunks[0], partial)
            rows = Span(chunks[0].stop, batch.stop)
        if rows.start < rows.stop:
            seen = memory.seen((rows.start - batch.start) // self.chunk_size, len(chunks))
            batch_state = partial.rows(rows.start - batch.start, len(batch))
            q = call.q[rows.start : rows.stop]
            call.provider.run(
                TILED_MEMORY_ATTENTION, call.kv, q=q, memory=seen, tile=self.chunk_size, **batch_state.intra
            )
        call.checkpoint(batch.stop)

    def _see_all(self, call: LayerCall, before: Tensor, chunk: Span, partial: PartialSoftmax) -> None:
        """Attention of the first chunk to all of a short past."""
        if before.shape[1]:
            q, state = call.q[chunk.start : chunk.stop], partial.rows(0, len(chunk))
            call.provider.run(MEMORY_FUSED_ATTENTION, call.kv, q=q, memory=before, **state.intra)
