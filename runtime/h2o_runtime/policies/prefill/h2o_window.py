"""Chunked sparse prefill whose memory comes from votes of a chunk's last queries.

No vote waits for attention: first the memories of all chunks are chosen, one from the other, in a chain of small
steps; then all chunks attend to theirs at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from h2o_runtime.attention.base import PartialSoftmax
from h2o_runtime.devices import Tensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.names import LatentForm
from h2o_runtime.operators import CACHED_CANDIDATE_SCORE, MEMORY_FUSED_ATTENTION, TILED_MEMORY_ATTENTION
from h2o_runtime.policies.prefill.base import LayerCall
from h2o_runtime.policies.prefill.h2o import H2O
from h2o_runtime.policies.prefill.h2o_memory import LayerMemory
from h2o_runtime.schedule import Span, spans


@dataclass(frozen=True)
class LastQueries(H2O):
    """H2O under `score="window"`: the last queries of a chunk replace the scores of all that they can see."""

    @classmethod
    def serves(cls, settings: Mapping[str, Any]) -> bool:
        return bool(settings.get("score", cls.score) == "window")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.score_window <= self.local:
            raise ConfigError(
                f"score_window ({self.score_window}) must be from 1 to local ({self.local})",
                field="score_window",
            )

    @property
    def latent_forms(self) -> tuple[LatentForm, ...]:
        """Votes are counted for each key head by itself, and expanded keys share one memory."""
        return ("absorbed",)

    def _phase2(
        self, call: LayerCall, memory: LayerMemory, batch: Span, first: int, partial: PartialSoftmax
    ) -> None:
        """The memories of the batch's chunks, one from the other; then attention of all chunks from `first` on."""
        chunks = list(spans(batch.stop, self.chunk_size, start=batch.start))
        memory.begin_batch(len(chunks))
        before = memory.current
        for chunk in chunks:
            self._end(call, memory, chunk, self._vote(call, memory, chunk), add=False)
            call.checkpoint(batch.start)
        rows = Span(max(batch.start, first), batch.stop)
        if rows.start == batch.start and before.shape[1] < self.memory:  # nothing, or a short history
            self._see_all(call, before, chunks[0], partial)
            rows = Span(chunks[0].stop, batch.stop)
        if rows.start < rows.stop:
            seen = memory.seen((rows.start - batch.start) // self.chunk_size, len(chunks))
            own = partial.rows(rows.start - batch.start, len(batch))
            q = call.q[rows.start : rows.stop]
            call.provider.run(
                TILED_MEMORY_ATTENTION, call.kv, q=q, memory=seen, tile=self.chunk_size, **own.intra
            )
        call.checkpoint(batch.stop)

    def _vote(self, call: LayerCall, memory: LayerMemory, chunk: Span) -> Tensor:
        """Votes of the chunk's last queries for the memory, [Hs, size]; those for itself are its rows' scores."""
        window = min(self.score_window, len(chunk))
        call.provider.run(
            CACHED_CANDIDATE_SCORE,
            call.kv,
            q_window=call.q[chunk.stop - window : chunk.stop],
            k=call.k[chunk.start : chunk.stop],
            memory=memory.current,
            score_mem=memory.colsum,
            score_chunk=memory.score[call.past + chunk.start : call.past + chunk.stop],
        )
        return memory.colsum

    def _see_all(self, call: LayerCall, before: Tensor, chunk: Span, partial: PartialSoftmax) -> None:
        """Attention of the first chunk to all of a short past."""
        if before.shape[1]:
            q, own = call.q[chunk.start : chunk.stop], partial.rows(0, len(chunk))
            call.provider.run(MEMORY_FUSED_ATTENTION, call.kv, q=q, memory=before, **own.intra)
