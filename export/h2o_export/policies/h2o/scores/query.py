"""The score rule `query`: its step as a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

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
from h2o_export.policies.h2o.score_entry import ScoreEntry
from h2o_export.policies.h2o.steps import partial_state
from h2o_runtime.attention import AttentionShape, PartialSoftmax
from h2o_runtime.bundles.manifest import FreeSize, FreeSizes, TensorSpec
from h2o_runtime.kv import KV
from h2o_runtime.operators import MEMORY_FUSED_ATTENTION, QUERY_SELECT
from h2o_runtime.policies.prefill.h2o.scores.query import Query

_LISTS = ("candidates", "past", "first")  # of QuerySelect


@dataclass(frozen=True)
class QueryPhase2(AttentionStep):
    """One tile's step: choose a memory set from the candidates, attend to it, fuse. As behind the longest past, in
    the first half of the layers."""

    policy: Query
    name: ClassVar[str] = "phase2"

    @property
    def _select(self) -> dict[str, int]:
        policy = self.policy
        stride = policy.stride_in(0, 1)
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


def _rows_before(policy: Query) -> int:
    """As many whole chunks as hold the largest memory set."""
    return -(-policy.memory // policy.chunk_size) * policy.chunk_size


class QueryEntry(ScoreEntry[Query]):
    policy = Query
    phase2 = QueryPhase2

    def rows(self, policy: Query) -> int:
        """One chunk behind those."""
        return _rows_before(policy) + policy.chunk_size
