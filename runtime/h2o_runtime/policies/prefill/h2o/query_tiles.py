"""The tiles of the score rule `query`: how a prompt is cut, and how many keys a tile chooses its memory from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal

from h2o_runtime.components.options import MOST, option
from h2o_runtime.errors import ConfigError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill.h2o.policy import H2O
from h2o_runtime.policies.prefill.h2o.query_store import (
    LastTile,
    QueryStore,
    Sets,
    StoreSizes,
    TileGroup,
)
from h2o_runtime.policies.prefill.policy import LayerCall, PromptCall
from h2o_runtime.schedule import Span, spans, tail_start

RULE = 1  # a change of what the defaults choose is another rule
BLOCK = 32  # keys whose mean and variance stand for them where the past is narrowed to candidates
NEVER = "never"  # of `grow`
NARROWED_FROM = 1.5  # times as many rows as candidates
GROWN_DIVISOR = 4  # a grown memory has 1 / GROWN_DIVISOR of the past's keys
GROWN_CANDIDATES = 8  # times as many as keys: fewer hide single keys that one query needs


@dataclass(frozen=True)
class Growth:
    """After `after` times `grow` rows a memory has at most `sixteenths` sixteenths of a chunk."""

    after: int
    sixteenths: int


GROWTHS = (Growth(2, 30), Growth(1, 20))  # the first of them that has begun


@dataclass(frozen=True)
class QueryTiles(H2O[QueryStore]):
    """The settings of the rule, and the sizes that follow from them and from the position of a chunk."""

    tile: int = option(
        64, "Maximum queries that share a memory set; a chunk is cut into equal tiles.", least=1
    )
    queries: int = option(
        64,
        "Minimum queries of a tile that vote for its memory set in the first half of the layers; in a smaller tile "
        "all vote.",
        least=1,
    )
    late_queries: int = option(
        8, "The same in the second half, where a missing key affects fewer layers.", least=1
    )
    candidates: int = option(
        2560,
        "Candidates for a tile's memory set; a past that is half as long again is first narrowed to so many. At "
        "least L + H.",
        least=1,
    )
    grow: int | Literal["never"] = option(
        4096,
        "Chunks after so many tokens have larger memory sets, of a quarter of the past.",
        least=0,
    )
    dense_start: int = option(
        0,
        "First tokens of the prompt that attend to every earlier token, in whole chunks.",
        least=0,
    )
    checks: int = option(
        2,
        "Queries of a tile that are compared with exact attention, to report how much of it a prompt saw; on the "
        "CPU.",
        least=0,
    )
    missed: float = option(
        1.0,
        "Guard: a chunk that misses more than this share of attention sees its whole past. On the CPU; 1 turns the "
        "guard off.",
        least=0,
    )
    rule: int = option(
        RULE,
        "Number of the rule and its defaults, by which results name it. There is no other yet.",
        least=1,
        numeric=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule != RULE:
            raise ConfigError(
                f"rule {self.rule} is not known, only rule {RULE}: leave out rule, or update h2o-edge",
                field="rule",
            )
        if self.missed > 1:
            raise ConfigError(
                f"missed ({self.missed:g}) must be at most 1, which is all attention", field="missed"
            )
        if self.missed < 1 and not self.checks:
            raise ConfigError(
                f"checks is 0, but missed ({self.missed:g}) needs compared queries: raise checks, or leave out "
                "missed",
                field="checks",
            )

    def first_of_tail(self, n: int) -> int:
        """The tail begins with a tile. So two prompts about one document mostly have tails that begin at the same
        row, and the second prompt can keep the shared rows of the tail."""
        return tail_start(n, self.dense_tail, self.chunk_size, self.tile_rows)

    @cached_property
    def tile_rows(self) -> int:
        """Rows of a tile: a chunk is cut into as few tiles as `tile` allows, all of one size but the last."""
        return -(-self.chunk_size // -(-self.chunk_size // self.tile))

    @cached_property
    def tiles_of_chunk(self) -> int:
        return -(-self.chunk_size // self.tile_rows)

    @property
    def dense_end(self) -> int:
        """Rows of a fresh prompt in chunks that begin before `dense_start`."""
        return -(-self.dense_start // self.chunk_size) * self.chunk_size

    @property
    def first_sparse(self) -> int:
        """The first row of a fresh prompt whose chunk may have memory sets."""
        return max(self.dense_end, self.chunk_size)

    def dense_rows_of(self, call: LayerCall | PromptCall) -> int:
        """Also the rows of all chunks that begin before `dense_start`."""
        begun = self.begun(call)
        chunks = -(-max(self.dense_start - call.past + begun, 0) // self.chunk_size)
        return max(chunks * self.chunk_size - begun, super().dense_rows_of(call))

    def lasting_rows(self, n: int) -> int:
        return max(super().lasting_rows(n), min(self.dense_end, n))

    def last_layer_pairs(self, n: int) -> int:
        return n if n <= self.dense_end else super().last_layer_pairs(n)

    def memory_at(self, past: int) -> int:
        """The size depends on the position of a chunk, never on the length of the prompt: a prompt that continues
        from a cached one must choose as a fresh run does."""
        least, growth = super().memory_at(past), self.growth_at(past)
        if growth is None:
            return least
        return max(least, min(past // GROWN_DIVISOR, self.chunk_size * growth.sixteenths // 16))

    def seen_at(self, past: int) -> int:
        return past if past < self.dense_start else super().seen_at(past)

    def growth_at(self, past: int) -> Growth | None:
        """Of a chunk after `past` rows; None where memories have the configured size."""
        grow = self.grow
        if not isinstance(grow, int):
            return None
        return next((one for one in GROWTHS if past >= one.after * grow), None)

    @property
    def most_candidates(self) -> int:
        """The most candidates of any tile."""
        return self.candidates_at(MOST)

    @cached_property
    def rows_without_lists(self) -> int:
        """Where a chunk that chooses from its whole past ends, at the latest."""
        return int(NARROWED_FROM * self.most_candidates) + self.chunk_size

    def candidates_at(self, past: int) -> int:
        """The most candidates of a tile in a chunk after `past` rows."""
        return max(self.candidates, self.memory_at(past) * (GROWN_CANDIDATES if self.growth_at(past) else 1))

    def narrowed_to(self, past: int) -> int:
        """Candidates of a tile in a chunk after `past` rows; 0: the tile chooses from its whole past. To narrow a
        past that is hardly longer takes more time than it saves, and loses keys."""
        count = self.candidates_at(past)
        return count if past >= NARROWED_FROM * count else 0

    def stride_in(self, layer: int, layers: int) -> int:
        """Distance between two queries of a tile that vote, in one of a model's layers."""
        votes = self.queries if 2 * layer < layers else self.late_queries
        return max(self.tile_rows // votes, 1)

    def tiles_before(self, row: int) -> int:
        """The number of tiles of a prompt's rows before `row`."""
        chunks, rest = divmod(row, self.chunk_size)
        return chunks * self.tiles_of_chunk + -(-rest // self.tile_rows)

    def tiles(self, start: int, stop: int) -> Iterator[Span]:
        """The tiles of rows start … stop - 1; row `start` begins a chunk."""
        for chunk in spans(stop, self.chunk_size, start=start):
            yield from spans(chunk.stop, self.tile_rows, start=chunk.start)

    def groups(self, begun: int, past: int, batch: Span, heads: int) -> list[TileGroup]:
        """The tiles of a batch's chunks that choose memory sets, in groups as large as one operator call allows:
        all tiles have the same size, candidates and keys, and use all of their room.

        begun: rows of the first chunk that lie before row 0; past: rows before row 0
        """

        def group(chunks: Span) -> TileGroup:
            before, tiles = past + chunks.start, tuple(self._new_tiles(chunks))
            sets = self.sets_of_tiles(begun, past, tiles, chunks, heads)
            first = self.tiles_before(begun + tiles[0].start) - self.tiles_before(begun)
            own = Span(first, first + len(tiles))
            rows = Span(tiles[0].start, tiles[-1].stop)
            last = LastTile(Span(past + tiles[-1].start, past + rows.stop), sets.with_skipped())
            return TileGroup(chunks, tiles, rows, sets, own, self.narrowed_to(before), last)

        def kind(one: TileGroup) -> tuple[int, int, bool]:
            sets = one.sets
            rooms = {self.room(tile, heads) for tile in (sets.first, sets.first + sets.count - 1)}
            return sets.memory, one.narrowed, {sets.size} == rooms

        chunks = spans(batch.stop, self.chunk_size, start=batch.start or -begun)
        choosing = [group(one) for one in chunks if self.seen_at(past + one.start) < past + one.start]
        found: list[TileGroup] = []
        for (*_, full), alike in groupby(choosing, kind):
            some = list(alike)
            if full and self.chunk_size % self.tile_rows == 0:
                some = [group(Span(some[0].chunks.start, some[-1].chunks.stop))]
            found += some
        return found

    def _new_tiles(self, chunks: Span) -> list[Span]:
        """The tiles of some chunks, without those before row 0: the first chunk may begin there."""
        return [one for one in self.tiles(chunks.start, chunks.stop) if one.start >= 0]

    def sets_of_tiles(self, begun: int, past: int, tiles: Sequence[Span], chunks: Span, heads: int) -> Sets:
        """Where the sets of `tiles` are stored: tiles of these chunks, with memory sets of one size."""
        base, before = self.tiles_before(past - begun), past + chunks.start
        first, own = (base + self.tiles_before(begun + row) for row in (chunks.start, tiles[0].start))
        return Sets(first, len(tiles), heads, self.memory_at(before), own - first)

    def store_sizes(self, model: ModelSpec, capacity: int) -> StoreSizes:
        tiles = self.tiles_before(capacity) + 1  # a turn may begin inside a tile
        heads = self.set_count(model.head_counts)
        return StoreSizes(
            heads=heads,
            kv_heads=tuple(spec.kv_heads for spec in model.each_layer),
            rooms=tuple(self.room(tile, heads) for tile in range(tiles)),
            tiles_at_once=self.tiles_before(self.batch_rows(capacity)),
            candidates=min(self.candidates_at(capacity), capacity),
            whole=min(self.chunk_size, capacity),
            rows=self.batch_rows(capacity),
            capacity=capacity,
        )

    def room(self, tile: int, heads: int) -> int:
        """The most keys in the sets of a tile, of all heads: for the last row where a chunk with it can begin,
        because a turn's chunks begin at any row."""
        last = (tile // self.tiles_of_chunk + 1) * self.chunk_size - 1
        return 0 if last < self.dense_start else heads * self.memory_at(last)

    def sets_of(self, chunk: Span, heads: int) -> Sets:
        """Where the sets of a fresh prompt's chunk are stored."""
        first, past = self.tiles_before(chunk.start), chunk.start
        return Sets(first, self.tiles_before(chunk.stop) - first, heads, self.memory_at(past))

    def last_tile(self, rows: int, heads: int) -> LastTile | None:
        """The last tile with a memory set among a fresh prompt's first `rows` rows."""
        start = max(rows - 1, 0) // self.chunk_size * self.chunk_size
        if self.seen_at(start) >= start:
            return None
        return LastTile(list(self.tiles(start, rows))[-1], self.sets_of(Span(start, rows), heads))

    def state_bytes(self, model: ModelSpec, context: int) -> int:
        return self.store_sizes(model, context).nbytes(model)

    def budget(self, n: int) -> dict[str, int]:
        return super().budget(n) | {"tail_tile": self.tile_rows}

    def summary(self) -> str:
        least = self.memory_at(0)
        grown = "" if self.memory == least else f" to {self.memory:,}"
        exact = f", the first {self.dense_end:,} tokens exact" if self.dense_end else ""
        return f"Chunks of {self.chunk_size:,}, memory {least:,}{grown}{exact}"
