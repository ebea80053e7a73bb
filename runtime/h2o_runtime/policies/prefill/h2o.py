"""Chunked sparse prefill with heavy hitters.

The heavy-hitter rule is H2O's (Zhang et al., 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative
Inference of Large Language Models"); the fusion of partial softmaxes is online softmax (Milakov and
Gimelshein, 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from h2o_runtime.attention.base import PartialSoftmax
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.model import ModelSpec
from h2o_runtime.names import LatentForm
from h2o_runtime.operators import CHUNKED_INTRA_ATTENTION, MEMORY_FUSED_ATTENTION
from h2o_runtime.options import option
from h2o_runtime.policies.prefill.base import (
    Kept,
    LayerCall,
    PrefillPolicy,
    PrefillReport,
    PromptCall,
    chunk_option,
)
from h2o_runtime.policies.prefill.h2o_memory import LayerMemory, MemoryStore, Selection
from h2o_runtime.reuse import Prefix, Provenance, Reuse
from h2o_runtime.schedule import Span, logical_batches, spans, tail_start

AUTO = "auto"  # of `heavy`


@dataclass(frozen=True)
class H2O(PrefillPolicy[MemoryStore]):
    """Each query attends to its chunk up to itself (Phase 1) and to the memory set of the past (Phase 2).

    Cost grows with N: every chunk costs S²/2 + S·(L + H) dot products a head, whatever came before it.
    """

    name: ClassVar[str] = "h2o"
    title: ClassVar[str] = "sparse"
    phases: ClassVar[tuple[str, ...]] = ("phase1", "phase2", "tail")

    chunk_size: int = chunk_option()
    local: int = option(
        64,
        "Local window L: the end of a chunk that is always remembered.",
        label="Local window",
        symbol="L",
        flags=("--h2o-local",),
        least=1,
    )
    heavy: int | Literal["auto"] = option(
        448,
        "Heavy hitters H: earlier tokens remembered by score. auto under --score query: L + H grow with the past.",
        label="Heavy hitters",
        symbol="H",
        flags=("--h2o-heavy",),
        least=0,
    )
    score: Literal["query", "colsum", "window"] = option(
        "query",
        "How heavy hitters are found: by the queries themselves that are to see them, by summed probabilities of "
        "all queries before, or by votes of a chunk's last queries.",
    )
    score_window: int = option(64, "Queries that vote under --score window.", symbol="")
    score_tile: int = option(
        128,
        "Most queries that share a memory under --score query; a chunk is cut into equal tiles.",
        symbol="",
        least=1,
    )
    score_queries: int = option(
        32,
        "Queries of a tile that choose its memory under --score query; a tile of fewer takes all.",
        symbol="",
        least=1,
    )
    score_candidates: int = option(
        2048,
        "Tokens that a chunk's tiles choose from under --score query; a longer past is narrowed first. At least "
        "as many as are remembered.",
        symbol="",
        least=1,
    )
    score_heads: Literal["kv", "query"] = option("kv", "One memory set for each such head.", symbol="heads")
    sink: int = option(
        0, "First tokens of the prompt that are always remembered.", label="Sink tokens", least=0
    )
    dense_tail: int = option(
        128, "Last tokens of the prompt that attend to everything.", symbol="tail", least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heavy == AUTO and self.score != "query":
            raise ConfigError(
                f"heavy is {AUTO}, which goes with score=query alone: under {self.score} the memory is of one size",
                field="heavy",
            )
        if self.memory >= self.chunk_size:
            raise ConfigError(
                f"local + heavy is {self.local} + {self.heavy} = {self.memory}, which must be below chunk_size "
                f"({self.chunk_size}): lower one of them or raise the chunk size",
                field="heavy",
            )
        if self.chunk_size > self.batch_size:
            raise ConfigError(
                f"chunk_size ({self.chunk_size}) must not exceed batch_size ({self.batch_size}): "
                "lower the chunk size or raise the batch size",
                field="chunk_size",
            )
        if self.sink > self.memory_at(0) - self.local:
            raise ConfigError(
                f"sink ({self.sink}) must not exceed heavy ({self.heavy}): sinks are kept among the heavy hitters",
                field="sink",
            )

    @property
    def latent_forms(self) -> tuple[LatentForm, ...]:
        return ("absorbed", "expanded")

    @property
    def memory(self) -> int:
        """M = L + H, the size of a memory set."""
        assert isinstance(self.heavy, int), "another class serves score=query"
        return self.local + self.heavy

    def memory_at(self, past: int) -> int:
        """Size of the memory of what comes behind `past` rows."""
        return self.memory

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> MemoryStore:
        return MemoryStore(
            layers=model.layers,
            heads=model.score_heads(self.score_heads),
            query_heads=model.query_heads,
            capacity=capacity,
            chunk_size=self.chunk_size,
            local=self.local,
            heavy=self.memory - self.local,
            batch=logical_batch_rows(self.batch_size, self.chunk_size, capacity),
            device=device,
        )

    def begin(self, prompt: PromptCall, state: MemoryStore) -> None:
        if prompt.prefix is not Prefix.HISTORY:
            state.turn.forget()
            return
        state.turn.begin(prompt.past)
        state.note_generated(prompt.generated)
        if prompt.n > self.chunk_size and prompt.past > self.memory:
            state.favour_generated(prompt.generated, self.local, self.memory - self.local)

    def attend(self, call: LayerCall, state: MemoryStore) -> None:
        n = len(call.q)
        memory = state.layer(call.layer, call.provider)
        if call.prefix is Prefix.HISTORY:
            memory.clear_decoded(call.past)
        if call.prefix is Prefix.HISTORY and n <= self.chunk_size:
            self._short_turn(call, memory)
            return
        self._recall(call, memory)
        tail = tail_start(n, self.dense_tail) if n > self.chunk_size or call.past else n
        first = self._first_chunk(call.needed, tail, n)
        for batch in logical_batches(n, self.batch_size, self.chunk_size):
            call.flow.needs(batch.stop)
            partial = state.partial(call.o[batch.start : batch.stop])
            with call.timer.measure("phase1"):
                self._phase1(call, memory, batch, first, partial)
            call.checkpoint(batch.start)
            with call.timer.measure("phase2"):
                self._phase2(call, memory, batch, first, partial)
            call.flow.finished(min(batch.stop, tail))
        if call.prefix is not Prefix.HISTORY:
            memory.keep_scores(call.past + n)
        if tail < n:
            with call.timer.measure("tail"):
                call.dense_rows(tail, n)
            call.checkpoint(n)
            call.flow.finished(n)

    def _first_chunk(self, needed: int, tail: int, n: int) -> int:
        """Where the first chunk begins whose attention must be computed; n where none must.

        Column sums take every query's. Otherwise nobody reads what stands before the row `needed`, nor what the
        dense tail replaces.
        """
        if not needed or self.score == "colsum":
            return 0
        return needed // self.chunk_size * self.chunk_size if needed < tail else n

    def _phase1(
        self, call: LayerCall, memory: LayerMemory, batch: Span, first: int, partial: PartialSoftmax
    ) -> None:
        """Attention inside the batch's chunks; column sums go straight into the score of their own rows."""
        start = max(batch.start, first)
        if start >= batch.stop:
            return
        new = slice(start, batch.stop)
        cached = slice(call.past + start, call.past + batch.stop)
        k, v = call.new_rows(start, batch.stop)
        call.provider.run(
            CHUNKED_INTRA_ATTENTION,
            q=call.q[new],
            k=k,
            v=v,
            chunk_size=self.chunk_size,
            **partial.rows(start - batch.start, len(batch)).out,
            colsum=memory.score[cached] if self.score == "colsum" else None,
        )

    def _phase2(
        self, call: LayerCall, memory: LayerMemory, batch: Span, first: int, partial: PartialSoftmax
    ) -> None:
        """Chunk by chunk: attend to the memory, fuse, add what it received to the scores, select the next one."""
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
            self._end(call, memory, chunk, colsum, add=True)
            call.checkpoint(chunk.stop)

    def _end(
        self, call: LayerCall, memory: LayerMemory, chunk: Span, values: Tensor | None, *, add: bool
    ) -> None:
        """The end of a chunk: scores of what it saw, and behind it the next memory."""
        if chunk.stop < len(call.q):
            rows = Span(call.past + chunk.start, call.past + chunk.stop)
            memory.step(rows, values, add, self._selection, fresh=call.prefix is not Prefix.HISTORY)
        elif values is not None:
            memory.put_scores(values, add)

    @property
    def _selection(self) -> Selection:
        return Selection(self.local, self.sink)

    def _recall(self, call: LayerCall, memory: LayerMemory) -> None:
        """Set the memory that the first chunk sees."""
        if call.prefix is Prefix.NONE:
            memory.clear()
        elif call.prefix is Prefix.BOUNDARY:
            memory.restore(call.past)
        elif call.past <= self.memory:
            memory.hold_all(call.past)
        else:
            memory.recall(call.past, self._selection)

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

    def reuse(self, shared: int, cached: int, n: int, origin: Provenance) -> Reuse:
        """All of a finished conversation that goes on, also where its last turn comes again or is put otherwise;
        else up to a chunk boundary, whose memory sets are kept."""
        if shared == cached < n and origin.complete:
            return Reuse(Prefix.HISTORY, shared)
        if 0 < origin.turn <= shared and origin.turn < n and origin.complete:
            return Reuse(Prefix.HISTORY, origin.turn)
        # A boundary's memory exists where the fresh run went on past it, and no kept row may lie in a dense tail:
        # not in that of the cached prompt, nor in that of the new one.
        limit = min(shared, origin.sparse, self.lasting_rows(n), origin.prompt - 1, n - 1)
        boundary = limit // self.chunk_size * self.chunk_size
        return Reuse(Prefix.BOUNDARY, boundary) if boundary > 0 else Reuse(Prefix.NONE, 0)

    def lasting_rows(self, n: int) -> int:
        tail = self.dense_tail if n > self.chunk_size else 0
        return max(n - tail, 0)

    def after_interruption(self, reuse: Reuse, n: int, before: Provenance) -> Provenance:
        """A boundary's memory sets are still there, and so are scores that no chunk has touched."""
        if reuse.prefix is Prefix.HISTORY and n <= self.chunk_size:
            return before.at_turn(reuse.length)
        if reuse.prefix is Prefix.BOUNDARY:
            return Provenance.interrupted(before.config, reuse.length)
        return Provenance()

    def state_bytes(self, model: ModelSpec, context: int) -> int:
        heads = model.score_heads(self.score_heads)
        sets = (context // self.chunk_size + 1) * heads * self.memory * 8
        scores = model.layers * (3 * context * heads * 4 + sets) + context * heads * 4
        batch = logical_batch_rows(self.batch_size, self.chunk_size, context)
        seen = (-(-batch // self.chunk_size) + 1) * heads * self.memory * 4
        return scores + seen + batch * model.query_heads * 8

    def visible_pairs(self, n: int) -> int:
        """The dense tail comes on top of its chunk."""
        if n <= self.chunk_size:
            return n * (n + 1) // 2
        pairs = 0
        for chunk in spans(n, self.chunk_size):
            rows = len(chunk)
            pairs += rows * (rows + 1) // 2 + (rows * self.memory_at(chunk.start) if chunk.start else 0)
        tail = min(self.dense_tail, n)
        return pairs + tail * n - tail * (tail - 1) // 2

    def last_layer_pairs(self, n: int) -> int:
        """Column sums take every query's attention to its chunk and its memory."""
        tail = tail_start(n, self.dense_tail) if n > self.chunk_size else n
        first = self._first_chunk(n - 1, tail, n)
        pairs = n if tail < n else 0
        for chunk in spans(n, self.chunk_size, start=first):
            rows = len(chunk)
            pairs += rows * (rows + 1) // 2 + (rows * self.memory_at(chunk.start) if chunk.start else 0)
        return pairs

    def kept(self, state: Any, length: int) -> Kept | None:
        kept: Kept = state.kept(length)
        return kept

    def restore(self, state: Any, numbers: Mapping[str, int]) -> None:
        state.restore(numbers)

    def report(self, state: MemoryStore, origin: Provenance) -> PrefillReport:
        passed = max(origin.prompt - 1, 0) // self.chunk_size
        seen_by = tuple(spans(origin.prompt, self.chunk_size, start=self.chunk_size))
        return PrefillReport(state.last_sets(), state.boundary_sets(passed), seen_by)

    def counts(self, n: int) -> dict[str, int]:
        chunks = -(-n // self.chunk_size)
        return {"chunks": chunks, "memory_size": self.memory if chunks > 1 else 0}

    def summary(self) -> str:
        return f"Chunks of {self.chunk_size:,}, memory {self.memory:,}"


def logical_batch_rows(batch_size: int, chunk_size: int, capacity: int) -> int:
    """Most rows that one launch of Phase 1 can have."""
    return min(batch_size // chunk_size * chunk_size, capacity)
