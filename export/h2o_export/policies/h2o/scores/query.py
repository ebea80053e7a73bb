"""The score rule `query`: its step as a graph, and its single-pass reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.attention_graphs.graph import (
    CACHE,
    AttentionGraph,
    attended,
    constant,
    keys_values,
    make_graph,
    operator,
    queries,
    standard,
)
from h2o_export.attention_graphs.step import AttentionStep, Feed, OperatorCall, Room, caches, normal
from h2o_export.policies.h2o.base import ScoreEntry
from h2o_export.policies.h2o.single_pass import NEAR_TIE, NEGLIGIBLE, SinglePass
from h2o_export.policies.h2o.steps import partial_state
from h2o_export.reference.softmax import masked_softmax
from h2o_runtime.attention import AttentionShape, PartialSoftmax
from h2o_runtime.bundles.manifest import FreeSize, FreeSizes, TensorSpec
from h2o_runtime.components.options import MOST
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import MEMORY_FUSED_ATTENTION, QUERY_SELECT
from h2o_runtime.policies.prefill.h2o.query_tiles import BLOCK
from h2o_runtime.policies.prefill.h2o.scores.query import Query

_LISTS = ("candidates", "past", "first")  # of QuerySelect
# Relative, of scores where a near tie of candidates went the other way: later candidates have other places then,
# and the denominators of votes another sample.
RESAMPLED = 0.1


@dataclass(frozen=True)
class QueryPhase2(AttentionStep):
    """One tile's step: choose a memory set from the candidates, attend to it, fuse. As behind the longest past."""

    policy: Query
    name: ClassVar[str] = "phase2"

    @property
    def _select(self) -> dict[str, int]:
        policy = self.policy
        stride = policy.stride_at(MOST)
        return {
            "tile": policy.tile_rows,
            "stride": stride,
            "reach": stride // 2,
            "local": policy.local,
            "heavy": policy.memory - policy.local,
        }

    def graph(self, shape: AttentionShape) -> AttentionGraph:
        """Inputs q [n, Hq, d] of one tile, the caches, candidates [1, Hl, Mp], past and first [1], and the Phase 1
        state."""
        policy = self.policy
        heads = policy.set_count(shape.head_counts)
        lists = min(shape.kv_heads, heads)
        inputs = (
            queries("q", shape),
            *keys_values(("k_cache", "v_cache"), "cap", shape),
            TensorSpec(name="candidates", dtype="int32", shape=(1, lists, "Mp")),
            TensorSpec(name="past", dtype="int64", shape=(1,)),
            TensorSpec(name="first", dtype="int64", shape=(1,)),
            attended("o_intra", shape),
            *partial_state("_intra", shape),
        )
        outputs = (
            attended("o", shape),
            TensorSpec(name="memory_next", dtype="int32", shape=(1, heads, policy.memory)),
        )
        nodes = [
            operator(
                "QuerySelect",
                ("q", "k_cache", "candidates", "past", "first"),
                ("memory_next",),
                scale=shape.scale,
                softcap=shape.softcap,
                score_heads=heads,
                **self._select,
            ),
            constant("tiles", [0]),
            standard("Squeeze", ("memory_next", "tiles"), "memory"),
            operator(
                "MemoryFusedAttention",
                ("q", "k_cache", "v_cache", "memory", "o_intra", "m_intra", "l_intra"),
                ("o", "colsum"),
                scale=shape.scale,
                softcap=shape.softcap,
            ),
        ]
        rows = FreeSize(name="n", counts="rows", most=policy.tile_rows)
        slots = FreeSize(name="Mp", counts="slots", most=policy.most_candidates)
        free = FreeSizes(sizes=(rows, CACHE, slots), spans=("past", "first"))
        return make_graph(self.name, inputs, outputs, nodes, free)

    def feed(self, shape: AttentionShape, room: Room, draw: np.random.Generator) -> Feed:
        """The first tile of several, behind a whole memory set. All earlier rows are candidates."""
        rows = self.policy.tile_rows
        heads = self.policy.set_count(shape.head_counts)
        lists = min(shape.kv_heads, heads)
        past = min(_rows_before(self.policy), self.policy.most_candidates)
        return {
            "q": normal(draw, shape, rows, shape.query_heads, 2.0),
            **caches(draw, shape, room.capacity),
            "candidates": np.tile(np.arange(past, dtype=np.int32), (1, lists, 1)),
            "past": np.array([past], np.int64),
            "first": np.array([past], np.int64),
            "o_intra": normal(draw, shape, rows, shape.query_heads, size=shape.value_size),
            "m_intra": draw.standard_normal((rows, shape.query_heads)).astype(np.float32),
            "l_intra": draw.uniform(1, rows, (rows, shape.query_heads)).astype(np.float32),
        }

    def compute(self, call: OperatorCall) -> None:
        provider, select, memory = call.provider, self._select, call.out["memory_next"]
        q, k_cache, v_cache, m, l = call.put("q", "k_cache", "v_cache", "m_intra", "l_intra")
        lists = dict(zip(_LISTS, call.put(*_LISTS), strict=True))
        kv = KV(k_cache, v_cache, int(call.feed["first"][0]) + len(q))
        del select["heavy"]
        provider.run(QUERY_SELECT, kv, q=q, **lists, **select, memory_next=memory)
        state = PartialSoftmax(call.out["o"], m, l)
        call.device.upload(call.feed["o_intra"], state.o)
        provider.run(MEMORY_FUSED_ATTENTION, kv, q=q, memory=memory[0], **state.intra)


@dataclass(frozen=True)
class Candidates:
    """Masks [Hs, past]: the keys that this reference selects, and the keys with the border's score."""

    best: Tensor
    tied: Tensor

    def of_heads(self, count: int) -> Candidates:
        """For each of so many heads, those of its group."""
        each = count // len(self.best)
        return Candidates(self.best.repeat_interleave(each, 0), self.tied.repeat_interleave(each, 0))

    def as_adopted(self, sets: Tensor) -> Tensor:
        """Among near ties at the border, those in the bundle's memory sets [Hs, M] are candidates."""
        remembered = torch.zeros_like(self.best).scatter_(1, sets, True)
        return (self.best & ~self.tied) | (self.tied & remembered)


@dataclass
class QueryPass(SinglePass[Query]):
    """Each tile of queries with the memory set that it chooses. `adopt` [layers, tiles, Hs, M] counts from
    the second chunk's first tile.
    """

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n, policy = q.shape[1], self.policy
        tail = policy.lasting_rows(n)
        out = q.new_empty((*q.shape[:2], v.shape[2]))
        for start in range(0, n, policy.chunk_size):
            end = min(start + policy.chunk_size, n)
            row, column = torch.arange(start, end)[:, None], torch.arange(end)[None, :]
            causal = (column <= row).expand(len(q), -1, -1)
            visible = causal & (column >= start)
            dots = self.scores(q[:, start:end], k[:, :end])
            sparse = min(tail, end)
            tiles = [
                slice(one, min(one + policy.tile_rows, end)) for one in range(start, sparse, policy.tile_rows)
            ]
            if start and tiles:
                for tile in tiles:
                    candidates = self._candidates(layer, q[:, tile], k, start)
                    memory = self._choose(layer, tile.start, q[:, tile], k, start, candidates)
                    seen = memory.repeat_interleave(len(q) // len(memory), dim=0)[:, None]
                    visible[:, tile.start - start : tile.stop - start, :start] |= seen
                if self._misses(dots, causal, visible, [self._checked_rows(tile, start) for tile in tiles]):
                    stop = tiles[-1].stop - start
                    visible[:, :stop] = causal[:, :stop]
            visible = torch.where(row >= tail, causal, visible)
            out[:, start:end] = masked_softmax(dots, visible, self.sinks) @ v[:, :end]
        return out

    def _checked_rows(self, tile: slice, start: int) -> list[int]:
        """Rows that represent a tile, as offsets in its chunk: one in each of equal parts, where multiples of the
        golden ratio are.
        """
        rows, before = tile.stop - tile.start, (tile.start - start) // self.policy.tile_rows
        count, places = min(self.policy.checks, rows), []
        for i in range(count):
            first, stop = i * rows // count, (i + 1) * rows // count
            share = (before * count + i) * (5**0.5 - 1) / 2 % 1
            places.append(tile.start - start + first + int(share * (stop - first)))
        return places

    def _misses(self, dots: Tensor, causal: Tensor, visible: Tensor, checked: list[list[int]]) -> bool:
        """Whether a chunk's checked rows miss too much: the mean over tiles of the probability of a row's
        most likely key, if that is not visible. dots, causal, visible [Hq, rows, stop].
        """
        if self.policy.missed >= 1 or not checked:
            return False
        tiles = []
        for places in checked:
            limit, where = masked_softmax(dots[:, places].double(), causal[:, places]).max(
                dim=-1
            )  # [Hq, places]
            seen = visible[:, places].gather(2, where[:, :, None])[:, :, 0]
            tiles.append(torch.where(seen, 0.0, limit).mean())
        return bool(torch.stack(tiles).mean() > self.policy.missed)

    def _candidates(self, layer: int, q: Tensor, k: Tensor, past: int) -> Candidates:
        """What a tile may choose from; q [Hq, rows, d]."""
        heads = self.policy.set_count(self.model.head_counts)
        # The heads of a group choose among the same candidates.
        lists = min(self.model.layer(layer).kv_heads, heads)
        everything = torch.ones(lists, past, dtype=torch.bool)
        count = self.policy.narrowed_to(past)
        if not count:
            return Candidates(everything, ~everything).of_heads(heads)
        rank = self._block_rank(q, k[:, :past], lists)
        best = self._best(rank, count - self.policy.local)
        border = rank.masked_fill(~best | rank.isinf(), torch.inf).amin(dim=1, keepdim=True)
        near = (rank - border).abs() <= NEAR_TIE * border.abs()
        return Candidates(best, near & (near.sum(1, keepdim=True) > BLOCK)).of_heads(heads)

    def _choose(
        self, layer: int, first: int, q: Tensor, k: Tensor, past: int, candidates: Candidates
    ) -> Tensor:
        """A tile's memory set as a mask [Hs, past]; q [Hq, rows, d]."""
        possible, theirs = candidates.best, None
        if self.adopt is not None:
            index = self.policy.tiles_before(first) - self.policy.tiles_of_chunk
            size = self.policy.memory_at(past)  # the rest only fills up
            each = self.adopt.shape[2] // len(possible)  # heads that share a set
            theirs = torch.from_numpy(self.adopt[layer, index][::each, :size]).long()
            possible = candidates.as_adopted(theirs)
        rank = self._rank(q, k[:, : first + q.shape[1]], first - past, possible)
        chosen = self._best(rank, self.policy.memory_at(past) - self.policy.local)
        if theirs is None:
            return chosen
        ties = [RESAMPLED if tied else NEAR_TIE for tied in candidates.tied.any(1).tolist()]
        return self._checked(chosen, theirs, rank, ties)

    def _voting_rows(self, q: Tensor, heads: int, stride: int) -> Tensor:
        """One of each `stride` of the rows q [Hq, rows, d], another one for each head of those that vote together:
        [Hq, votes]."""
        together = len(q) // heads
        head = torch.arange(len(q))[:, None]
        rows = torch.arange(0, q.shape[1], stride) + head % together * stride // together
        return rows.clamp(max=q.shape[1] - 1)

    def _votes(self, q: Tensor, heads: int, stride: int) -> Tensor:
        """The queries of these rows, [Hq, votes, d]."""
        return q[torch.arange(len(q))[:, None], self._voting_rows(q, heads, stride)]

    def _block_rank(self, q: Tensor, k: Tensor, heads: int) -> Tensor:
        """Scores of the rows k [Hq, past, d] as candidates of a tile q [Hq, rows, d]: what their blocks get,
        [Hs, past]. The first block, and rows from the block on in which the local window begins, come
        first."""
        past, policy = k.shape[1], self.policy
        blocks = k[:, : past // BLOCK * BLOCK].unflatten(1, (-1, BLOCK))
        votes = self._votes(q, heads, policy.stride_at(past))
        scores = self.scores(
            torch.cat((votes, votes.square() / 2), dim=-1),
            torch.cat((blocks.mean(2), blocks.var(2, correction=0)), dim=-1),
        )
        every = torch.ones(len(q), 1, blocks.shape[1], dtype=torch.bool)
        given = _probabilities(scores, every).sum(1).double().view(heads, -1, blocks.shape[1]).sum(1)
        rank = given.new_full((heads, past), torch.inf)
        ranked = (past - policy.local) // BLOCK * BLOCK
        rank[:, BLOCK:ranked] = given.repeat_interleave(BLOCK, dim=1)[:, BLOCK:ranked]
        rank = torch.where(rank < NEGLIGIBLE, 0.0, rank)
        rank[:, past - policy.local :] = -torch.inf  # selected whatever its score
        return rank

    def _rank(self, q: Tensor, k: Tensor, before: int, candidates: Tensor) -> Tensor:
        """Scores by a tile's votes: [Hs, past]; -inf for keys that are no candidates. The rows q [Hq, rows, d] lie
        behind `before` rows of their chunk; k [Hq, past + before + rows, d].
        """
        heads, past = candidates.shape
        stride = self.policy.stride_at(past)
        votes, group = self._votes(q, heads, stride), len(q) // heads
        of_past = candidates.repeat_interleave(group, dim=0)[:, None]
        voting = self._voting_rows(q, heads, stride)
        of_chunk = torch.arange(k.shape[1] - past) <= before + voting[:, :, None]
        scores = self.scores(votes, k)
        own = scores[:, :, past:].masked_fill(~of_chunk, -torch.inf)
        given = _probabilities(scores[:, :, :past], of_past, own).sum(1).double()
        given = given.view(heads, group, past).sum(1)
        rank = given.clone()
        for distance in range(1, min(stride // 2, past - 1) + 1):
            rank[:, distance:] += given[:, :-distance] / 4
            rank[:, :-distance] += given[:, distance:] / 4
        rank = torch.where(rank < NEGLIGIBLE, 0.0, rank)
        rank = torch.where(candidates, rank, -torch.inf)
        rank[:, past - self.policy.local :] = -torch.inf  # selected whatever its score
        return rank

    def _best(self, rank: Tensor, heavy: int) -> Tensor:
        chosen = torch.zeros(rank.shape, dtype=torch.bool)
        for head, own in enumerate(rank):
            chosen[head, torch.sort(own, descending=True, stable=True).indices[:heavy]] = True
        chosen[:, rank.shape[1] - self.policy.local :] = True
        return chosen


def _probabilities(scores: Tensor, places: Tensor, own: Tensor | None = None) -> Tensor:
    """Probabilities of the votes' places: scores [Hq, votes, K]; places bool [Hq, 1, K] → as scores, 0 elsewhere.

    The first 128 places count once in the denominator, of each 128 later ones 16 eight times; own [Hq, votes, W],
    other scores, once.
    """
    number = places.cumsum(-1) - 1
    within = number % 128
    weight = torch.where((within >= 56) & (within < 72), 8.0, 0.0).masked_fill(number < 128, 1.0)
    counted = scores + (weight * places).log()
    total = (counted if own is None else torch.cat((counted, own), dim=-1)).logsumexp(-1, keepdim=True)
    return (scores - total).clamp(max=0.0).exp() * places


def _rows_before(policy: Query) -> int:
    """As many whole chunks as hold the largest memory set."""
    return -(-policy.memory // policy.chunk_size) * policy.chunk_size


class QueryEntry(ScoreEntry[Query]):
    policy = Query

    def rows(self, policy: Query) -> int:
        """One chunk behind those."""
        return _rows_before(policy) + policy.chunk_size

    def phase2(self, policy: Query) -> QueryPhase2:
        return QueryPhase2(policy)

    def single_pass(self, policy: Query, model: ModelSpec, sets: NDArray[np.int32]) -> QueryPass:
        return QueryPass(policy, model, sets)
