"""The graphs of chunked sparse prefill.

phase1   ChunkedIntraAttention over a logical batch
phase2   one chunk's step: attend to the memory and fuse, update scores, select the next memory
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from onnx import NodeProto

from h2o_export.attention_graphs.graph import (
    CACHE,
    ROWS,
    AttentionGraph,
    attended,
    keys_values,
    make_graph,
    operator,
    queries,
    row_size,
)
from h2o_export.attention_graphs.step import AttentionStep, Feed, OperatorCall, Room, caches, normal
from h2o_runtime.attention import AttentionProvider, AttentionShape, NextMemory, PartialSoftmax
from h2o_runtime.bundles.manifest import FreeSize, FreeSizes, TensorSpec
from h2o_runtime.devices import Tensor
from h2o_runtime.kv import KV
from h2o_runtime.operators import (
    CHUNKED_INTRA_ATTENTION,
    MEMORY_FUSED_ATTENTION,
    MEMORY_STEP,
)
from h2o_runtime.policies.prefill.h2o import H2O
from h2o_runtime.policies.prefill.h2o.chain import MemoryChain


@dataclass(frozen=True)
class Phase1(AttentionStep):
    """Attention inside the chunks of a logical batch."""

    policy: H2O[Any]
    name: ClassVar[str] = "phase1"

    def graph(self, shape: AttentionShape) -> AttentionGraph:
        heads = self.policy.set_count(shape.head_counts)
        inputs = (queries("q", shape), *keys_values("kv", "n", shape))
        colsum = TensorSpec(name="colsum", dtype="float32", shape=("n", heads))
        outputs = (attended("o", shape), *partial_state("", shape), colsum)
        node = operator(
            "ChunkedIntraAttention",
            ("q", "k", "v"),
            ("o", "m", "l", "colsum"),
            chunk_size=self.policy.chunk_size,
            scale=shape.scale,
            softcap=shape.softcap,
            score_heads=heads,
        )
        return make_graph(self.name, inputs, outputs, [node], FreeSizes(sizes=(ROWS,)))

    def feed(self, shape: AttentionShape, room: Room, draw: np.random.Generator) -> Feed:
        """A chunk and a half."""
        chunk = self.policy.chunk_size
        n = min(chunk + chunk // 2, room.batch)
        q = normal(draw, shape, n, shape.query_heads, 2.0)
        return {
            "q": q,
            **{name: normal(draw, shape, n, shape.kv_heads, size=row_size(name, shape)) for name in "kv"},
        }

    def compute(self, call: OperatorCall) -> None:
        state = PartialSoftmax(call.out["o"], call.out["m"], call.out["l"])
        q, k, v = call.put("q", "k", "v")
        call.provider.run(
            CHUNKED_INTRA_ATTENTION,
            q=q,
            k=k,
            v=v,
            chunk_size=self.policy.chunk_size,
            **state.out,
            colsum=call.out["colsum"],
        )


@dataclass(frozen=True)
class ChunkRows:
    """A chunk's queries [n, Hq, d], the cache whose rows start … stop - 1 it is, and its memory set [Hs,
    M].
    """

    q: Tensor
    kv: KV
    memory: Tensor
    start: int
    stop: int


@dataclass(frozen=True)
class ChainPhase2(AttentionStep):
    """One full chunk's step against the memory set, for rules with a chain of memory sets."""

    policy: MemoryChain
    name: ClassVar[str] = "phase2"

    @abstractmethod
    def update_nodes(self, shape: AttentionShape) -> list[NodeProto]:
        """From `score` and the memory set's probabilities, `colsum` [Hs, Mp], to `score_next`. The graph's
        other inputs are available too.
        """

    @abstractmethod
    def update(self, provider: AttentionProvider, chunk: ChunkRows, rows: Tensor, score: Tensor) -> bool:
        """The same by the provider: make of `rows` [Hs, M], which is what the memory received, its new scores, and
        of `score` [n, Hs] the chunk's. Returns whether `rows` are added to the old ones, or replace them."""

    def graph(self, shape: AttentionShape) -> AttentionGraph:
        """Inputs q [n, Hq, d] of one full chunk, the caches, memory [Hs, Mp], the chunk's Phase 1 state,
        score [cap, Hs] (the chunk's rows filled from Phase 1, where the rule sums), chunk_range [start, stop]."""
        policy = self.policy
        heads = policy.set_count(shape.head_counts)
        inputs = (
            queries("q", shape),
            *keys_values(("k_cache", "v_cache"), "cap", shape),
            TensorSpec(name="memory", dtype="int32", shape=(heads, "Mp")),
            attended("o_intra", shape),
            *partial_state("_intra", shape),
            TensorSpec(name="score", dtype="float32", shape=("cap", heads)),
            TensorSpec(name="chunk_range", dtype="int64", shape=(2,)),
        )
        outputs = (
            attended("o", shape),
            TensorSpec(name="score_next", dtype="float32", shape=("cap", heads)),
            TensorSpec(name="memory_next", dtype="int32", shape=(heads, policy.memory)),
        )
        fused = operator(
            "MemoryFusedAttention",
            ("q", "k_cache", "v_cache", "memory", "o_intra", "m_intra", "l_intra"),
            ("o", "colsum"),
            scale=shape.scale,
            softcap=shape.softcap,
        )
        update = self.update_nodes(shape)
        select = operator(
            "MemorySelect",
            ("score_next", "memory", "chunk_range"),
            ("memory_next",),
            local=policy.local,
            heavy=policy.memory - policy.local,
        )
        rows = FreeSize(name="n", counts="rows", most=policy.chunk_size)
        slots = FreeSize(name="Mp", counts="slots", most=policy.memory)
        free = FreeSizes(sizes=(rows, CACHE, slots), spans=("chunk_range",))
        return make_graph(self.name, inputs, outputs, [fused, *update, select], free)

    def feed(self, shape: AttentionShape, room: Room, draw: np.random.Generator) -> Feed:
        """The second chunk."""
        chunk, local = self.policy.chunk_size, self.policy.local
        heavy = self.policy.memory - local
        cache = caches(draw, shape, room.capacity)
        heads = self.policy.set_count(shape.head_counts)
        early = [np.sort(draw.choice(chunk - local, heavy, replace=False)) for _ in range(heads)]
        last = np.arange(chunk - local, chunk)
        return {
            "q": normal(draw, shape, chunk, shape.query_heads, 2.0),
            **cache,
            "memory": np.stack([np.concatenate((row, last)) for row in early]).astype(np.int32),
            "o_intra": normal(draw, shape, chunk, shape.query_heads, size=shape.value_size),
            "m_intra": draw.standard_normal((chunk, shape.query_heads)).astype(np.float32),
            "l_intra": draw.uniform(1, chunk, (chunk, shape.query_heads)).astype(np.float32),
            "score": draw.uniform(0, 10, (room.capacity, heads)).astype(np.float32),
            "chunk_range": np.array([chunk, 2 * chunk], np.int64),
        }

    def compute(self, call: OperatorCall) -> None:
        policy, provider, score = self.policy, call.provider, call.out["score_next"]
        q, k_cache, v_cache, memory, m, l = call.put(
            "q", "k_cache", "v_cache", "memory", "m_intra", "l_intra"
        )
        state = PartialSoftmax(call.out["o"], m, l)
        call.device.upload(call.feed["o_intra"], state.o)
        call.device.upload(call.feed["score"], score)
        start, stop = (int(value) for value in call.feed["chunk_range"])
        rows = call.device.empty(memory.shape, np.float32)
        kv = KV(k_cache, v_cache, stop)
        provider.run(MEMORY_FUSED_ATTENTION, kv, q=q, memory=memory, **state.intra, colsum=rows)
        add = self.update(provider, ChunkRows(q, kv, memory, start, stop), rows, score[start:stop])
        into = NextMemory(call.out["memory_next"])
        provider.run(
            MEMORY_STEP,
            score=score,
            memory=memory,
            values=rows,
            add=add,
            start=start,
            stop=stop,
            local=policy.local,
            **into.out,
        )


def partial_state(suffix: str, shape: AttentionShape) -> tuple[TensorSpec, ...]:
    """m and l of a partial softmax, [n, Hq]."""
    return tuple(
        TensorSpec(name=name + suffix, dtype="float32", shape=("n", shape.query_heads)) for name in ("m", "l")
    )
