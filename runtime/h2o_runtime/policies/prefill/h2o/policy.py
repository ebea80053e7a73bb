"""Chunked sparse prefill with heavy hitters.

The heavy-hitter rule is H2O's (Zhang et al., 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative
Inference of Large Language Models"); the fusion of partial softmaxes is online softmax (Milakov and
Gimelshein, 2018).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from h2o_runtime.attention.provider import PartialSoftmax
from h2o_runtime.caches.reuse import Prefix, Provenance, Reuse
from h2o_runtime.components.options import MOST, option
from h2o_runtime.devices import Tensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.head_counts import HeadCounts
from h2o_runtime.operators import CHUNKED_INTRA_ATTENTION
from h2o_runtime.policies.prefill.h2o.scratch import PartialScratch
from h2o_runtime.policies.prefill.policy import (
    WHOLE,
    LayerCall,
    PrefillPolicy,
    PromptCall,
    SavedState,
    chunk_option,
)
from h2o_runtime.schedule import Span, logical_batches, rows_of_chunks, spans, tail_start

Store = TypeVar("Store", bound=PartialScratch)


def score_rule(name: str) -> Any:
    """The field `score` of a rule's class, with the rule's name as its only value."""
    return option(name, "How heavy hitters are chosen.")


@dataclass(frozen=True)
class H2O(PrefillPolicy[Store]):
    """Each query attends to its chunk up to itself (Phase 1) and to the memory set of the past (Phase 2).

    Cost grows with N: every chunk costs S²/2 + S·(L + H) dot products a head, whatever came before it.

    A score rule chooses the heavy hitters. It is a subclass, registered in `SCORES` by its `score`. It defines
    options, a state, the steps of Phase 2 and checks.

    score_title      the rule in words, for help texts and the page
    needs_every_row  whether the rule needs the attention of every query, even if no later layer reads the output
    scores_tail      whether rows of the dense tail pass through both phases too, because the rule scores them
    """

    name: ClassVar[str] = "h2o"
    title: ClassVar[str] = "sparse"
    phases: ClassVar[tuple[str, ...]] = ("phase1", "phase2", "tail")
    value_sizes: ClassVar[bool] = True
    spanning_lists: ClassVar[bool] = True
    mixed_rows: ClassVar[bool] = True
    joined_by_sinks: ClassVar[bool] = True
    score_title: ClassVar[str]
    needs_every_row: ClassVar[bool] = False
    scores_tail: ClassVar[bool] = True

    chunk_size: int = chunk_option()
    local: int = option(
        64,
        "Local window L: last tokens of a chunk that a memory set always has.",
        label="Local window",
        least=1,
    )
    heavy: int = option(
        448, "Heavy hitters H: earlier tokens with the highest scores.", label="Heavy hitters", least=0
    )
    score: str = score_rule("")
    heads: Literal["auto", "kv", "query"] = option(
        "auto",
        "Heads with their own memory set: key/value heads (kv) or query heads (query). auto: kv, but query where "
        "layers differ in key/value heads alone.",
    )
    dense_tail: int = option(
        128,
        "Last tokens of the prompt that attend to every token; under score=query they begin with a whole tile.",
        least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local + self.heavy >= self.chunk_size:
            raise ConfigError(
                f"local + heavy is {self.local} + {self.heavy} = {self.local + self.heavy}, which must be below "
                f"chunk_size ({self.chunk_size}): lower one of them or raise the chunk size",
                field="heavy",
            )
        if self.chunk_size > self.batch_size:
            raise ConfigError(
                f"chunk_size ({self.chunk_size}) must not exceed batch_size ({self.batch_size}): "
                "lower the chunk size or raise the batch size",
                field="chunk_size",
            )

    # --- What a score rule says ---------------------------------------------------------------------------

    @abstractmethod
    def look_back(
        self, call: LayerCall, state: Store, batch: Span, first: int, partial: PartialSoftmax
    ) -> None:
        """Phase 2 of a logical batch: choose memory sets, attend to them and fuse the result into `partial`, the
        batch's state. Calls `call.checkpoint` between steps and at the end of the batch.

        Attention of rows before `first` need not be computed. Memory sets and scores of the batch do not depend
        on `first`.
        """

    def before_chunks(self, call: LayerCall, state: Store) -> None:
        """Set the memory set of a layer's first chunk."""

    def after_chunks(self, call: LayerCall, state: Store) -> None:
        """All chunks of a layer are done."""

    def after_short_turn(self, call: LayerCall, state: Store) -> None:
        """A layer of a turn with at most one chunk is done: its rows attended to all earlier rows."""

    def column_sums(self, call: LayerCall, state: Store, rows: Span) -> Tensor | None:
        """Where Phase 1 writes the probabilities that the prompt's rows `rows` received in their chunk,
        [rows, Hs]; None if the rule does not need them.
        """
        return None

    def first_of_tail(self, n: int) -> int:
        """First row of the dense tail, if row 0 of n begins a chunk; n if there is no tail."""
        return tail_start(n, self.dense_tail)

    def memory_at(self, past: int) -> int:
        """The memory set's size after `past` rows."""
        return self.local + self.heavy

    def seen_at(self, past: int) -> int:
        """How many of `past` rows a chunk behind them sees."""
        return self.memory_at(past) if past else 0

    # --- What all rules share -----------------------------------------------------------------------------

    def set_count(self, counts: HeadCounts) -> int:
        """Hs, the heads of a layer with their own memory set. Raises ConfigError if layers differ in them."""
        if self.heads != "auto":
            return counts.scored(self.heads)
        only_keys_differ = len(counts.kv) > 1 and len(counts.query) == 1
        return counts.scored("query" if only_keys_differ else "kv")

    @property
    def memory(self) -> int:
        """M = L + H, the size of the largest memory set."""
        return self.memory_at(MOST)

    def attend(self, call: LayerCall, state: Store) -> None:
        n = len(call.q)
        if call.prefix is Prefix.HISTORY and call.prompt_piece == WHOLE and n <= self.chunk_size:
            self._short_turn(call, state)
            return
        self.before_chunks(call, state)
        tail, dense = self.tail_of(call), self.dense_rows_of(call)
        if 0 < tail <= dense:
            tail = dense = n
        first = self._first_chunk(call.needed, tail, n, self.begun(call))
        sparse = n if self.scores_tail else tail
        for batch in logical_batches(sparse, self.batch_size, self.chunk_size, self.begun(call)):
            call.flow.needs(batch.stop)
            if batch.start < dense:
                with call.timer.measure("phase1"):
                    call.dense_rows(batch.start, min(dense, batch.stop))
            if dense < batch.stop:
                self._two_phases(call, state, Span(max(batch.start, dense), batch.stop), first)
            call.flow.finished(min(batch.stop, tail))
        self.after_chunks(call, state)
        if tail < n:
            call.flow.needs(n)
            with call.timer.measure("tail"):
                call.dense_rows(tail, n)
            call.checkpoint(n)
            call.flow.finished(n)

    def begun(self, call: LayerCall | PromptCall) -> int:
        """Cached rows at the start of the first chunk: some rules let a prompt continue inside a chunk."""
        return call.past % self.chunk_size if call.prefix is Prefix.BOUNDARY else 0

    def dense_rows_of(self, call: LayerCall | PromptCall) -> int:
        """The first rows of a call that attend to every earlier row in one operation: the rest of the first chunk,
        if the prompt continues inside it."""
        return self.chunk_size - call.past if 0 < call.past == self.begun(call) else 0

    def tail_of(self, call: LayerCall) -> int:
        """First row of the dense tail; n if there is none."""
        n, begun = len(call.q), self.begun(call)
        has_tail = not call.prompt_piece.more and (n > self.chunk_size or call.past > 0)
        return max(self.first_of_tail(begun + n) - begun, 0) if has_tail else n

    def _first_chunk(self, needed: int, tail: int, n: int, begun: int = 0) -> int:
        """First row of the first chunk whose attention must be computed; n if there is no such chunk.

        Some rules need every query's attention. Under the others, attention is not computed for rows before
        `needed` and for rows of the dense tail.
        """
        if not needed or self.needs_every_row:
            return 0
        if needed >= tail:
            return n
        return max((begun + needed) // self.chunk_size * self.chunk_size - begun, 0)

    def _two_phases(self, call: LayerCall, state: Store, batch: Span, first: int) -> None:
        partial = state.partial(call.o[batch.start : batch.stop])
        with call.timer.measure("phase1"):
            self._phase1(call, state, batch, first, partial)
        call.checkpoint(batch.start)
        with call.timer.measure("phase2"):
            self.look_back(call, state, batch, first, partial)

    def _phase1(
        self, call: LayerCall, state: Store, batch: Span, first: int, partial: PartialSoftmax
    ) -> None:
        """Attention of the batch's new rows inside their chunks. A chunk with cached rows gets its own call."""
        end = -self.begun(call) % self.chunk_size if batch.start == 0 else 0
        for start, stop in ((batch.start, min(end, batch.stop)), (max(end, batch.start), batch.stop)):
            if max(start, first) >= stop:
                continue
            rows = Span(max(start, first), stop)
            k, v = call.new_rows(rows.start, rows.stop)
            call.provider.run(
                CHUNKED_INTRA_ATTENTION,
                q=call.q[rows.start : rows.stop],
                k=k,
                v=v,
                chunk_size=self.chunk_size,
                **partial.rows(rows.start - batch.start, rows.stop - batch.start).out,
                colsum=self.column_sums(call, state, rows),
            )

    def _short_turn(self, call: LayerCall, state: Store) -> None:
        """The next turn of a conversation, with at most one chunk: full attention."""
        n = len(call.q)
        call.flow.needs(n)
        with call.timer.measure("phase1"):
            call.dense_rows(0, n)
        self.after_short_turn(call, state)
        call.checkpoint(n)
        call.flow.finished(n)

    def cuts(self, n: int, reuse: Reuse, rows: int) -> Sequence[int]:
        """Between chunks. The last piece has the whole dense tail, because its rows must pass all layers in one
        call.
        """
        size = rows_of_chunks(rows, self.chunk_size)
        begun = reuse.length % self.chunk_size if reuse.prefix is Prefix.BOUNDARY else 0
        return range(size - begun, min(self.first_of_tail(begun + n) - begun + 1, n), size)

    def reuse(self, shared: int, cached: int, n: int, origin: Provenance) -> Reuse:
        """All rows of a finished conversation that continues, or the rows before its last turn if that turn is
        repeated or changed. Otherwise the rows up to a boundary at which a prompt can continue as a fresh run
        would.
        """
        if shared == cached < n and origin.complete:
            return Reuse(Prefix.HISTORY, shared)
        if 0 < origin.turn <= shared and origin.turn < n and origin.complete:
            return Reuse(Prefix.HISTORY, origin.turn)
        # A boundary has a memory set only if the fresh run continued after it. No kept row may be in a dense tail,
        # of the cached prompt or of the new one.
        limit = min(shared, origin.sparse, self.lasting_rows(n), origin.prompt - 1, n - 1)
        boundary = self.boundary_before(limit, origin)
        return Reuse(Prefix.BOUNDARY, boundary) if boundary > 0 else Reuse(Prefix.NONE, 0)

    def boundary_before(self, limit: int, origin: Provenance) -> int:
        """The last row, at most `limit`, from which a prompt can continue as a fresh run would."""
        return limit // self.chunk_size * self.chunk_size

    def lasting_rows(self, n: int) -> int:
        return self.first_of_tail(n) if n > self.chunk_size else n

    def visible_pairs(self, n: int) -> int:
        first = self.lasting_rows(n)
        tail = n - first
        return self._chunk_pairs(n, 0) + tail * first + tail * (tail + 1) // 2

    def last_layer_pairs(self, n: int) -> int:
        tail = self.lasting_rows(n)
        first = self._first_chunk(n - 1, tail, n)
        return self._chunk_pairs(n, first) + (n if tail < n else 0)

    def _chunk_pairs(self, n: int, first: int) -> int:
        """Pairs of the chunks of n rows, from row `first` on, with their own rows and their memory sets."""
        pairs = 0
        for chunk in spans(n if self.scores_tail else self.lasting_rows(n), self.chunk_size, start=first):
            rows = len(chunk)
            pairs += rows * (rows + 1) // 2 + rows * self.seen_at(chunk.start)
        return pairs

    def saved_state(self, state: Any, length: int) -> SavedState | None:
        saved: SavedState = state.saved_state(length)
        return saved

    def restore(self, state: Any, numbers: Mapping[str, int]) -> None:
        state.restore(numbers)

    def counts(self, n: int) -> dict[str, int]:
        chunks = -(-n // self.chunk_size)  # none where the cache holds the whole prompt
        return {"chunks": chunks, "memory_size": self.seen_at(max(chunks - 1, 0) * self.chunk_size)}

    def budget(self, n: int) -> dict[str, int]:
        last = (n - 1) // self.chunk_size * self.chunk_size
        return {
            "chunk_size": self.chunk_size,
            "local": self.local,
            "heavy": self.memory_at(last) - self.local,
            "dense_tail": self.dense_tail,
        }

    def summary(self) -> str:
        return f"Chunks of {self.chunk_size:,}, memory {self.memory:,}"

    def batch_rows(self, capacity: int) -> int:
        """The most rows in one launch of Phase 1."""
        return min(self.batch_size // self.chunk_size * self.chunk_size, capacity)
