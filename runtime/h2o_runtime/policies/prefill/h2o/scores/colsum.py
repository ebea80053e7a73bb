"""The classic score rule: a token's score is the sum of its probabilities over all queries so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from h2o_runtime.attention.provider import PartialSoftmax
from h2o_runtime.devices import Tensor
from h2o_runtime.operators import MEMORY_FUSED_ATTENTION
from h2o_runtime.policies.prefill.h2o.chain import MemoryChain
from h2o_runtime.policies.prefill.h2o.memory import MemoryStore
from h2o_runtime.policies.prefill.h2o.policy import score_rule
from h2o_runtime.policies.prefill.policy import LayerCall
from h2o_runtime.schedule import Span, spans


@dataclass(frozen=True)
class ColumnSum(MemoryChain):
    """Phase 1 sums each column's probabilities inside a chunk. Each later chunk adds those of its memory set."""

    score_title: ClassVar[str] = "probabilities summed over earlier queries"
    needs_every_row: ClassVar[bool] = True

    score: Literal["colsum"] = score_rule("colsum")

    def column_sums(self, call: LayerCall, state: MemoryStore, rows: Span) -> Tensor:
        memory = state.layer(call.layer, call.provider)
        return memory.score[call.past + rows.start : call.past + rows.stop]

    def look_back(
        self, call: LayerCall, state: MemoryStore, batch: Span, first: int, partial: PartialSoftmax
    ) -> None:
        """For each chunk: attend to the memory set, fuse, add the set's probabilities to its scores, choose the
        next set.
        """
        memory = state.layer(call.layer, call.provider)
        memory.begin_batch(-(-len(batch) // self.chunk_size))
        for chunk in spans(batch.stop, self.chunk_size, start=batch.start):
            colsum = None
            if memory.size:
                colsum = memory.colsum
                q = call.q[chunk.start : chunk.stop]
                rows = partial.rows(chunk.start - batch.start, chunk.stop - batch.start)
                call.provider.run(
                    MEMORY_FUSED_ATTENTION, call.kv, q=q, memory=memory.current, **rows.intra, colsum=colsum
                )
            self.end_chunk(call, memory, chunk, colsum, add=True)
            call.checkpoint(chunk.stop)
