"""One layer's attention, by the h2o policy and by what others use: the same q, k, v, the same threads.

Inputs are random; speed does not depend on them. Every contender is a callable without arguments that
writes into buffers of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from h2o_plugins._cpu import KV, Kernels
from h2o_runtime import Query
from h2o_runtime.ort.library import import_onnxruntime
from h2o_runtime.policies.prefill.h2o.query_tiles import BLOCK
from h2o_runtime.schedule import Span

onnxruntime = import_onnxruntime()

Array = np.ndarray[Any, Any]
HQ, HKV, D = 32, 8, 64
SCALE = 1 / np.sqrt(D)
CHUNK, LOCAL, HEAVY, BATCH = 1024, 256, 256, 4096


def inputs(n: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, heads, D), dtype=np.float32) for heads in (HQ, HKV, HKV))
    return q, k, v


class H2O:
    """Phase 1 over logical batches, then Phase 2 chunk by chunk, scores and selection included (colsum rule)."""

    def __init__(self, kernels: Kernels, q: Array, k: Array, v: Array) -> None:
        n = len(q)
        self.kernels, self.q, self.k, self.v = kernels, q, k, v
        self.o = np.empty_like(q)
        self.m, self.l = np.empty((n, HQ), np.float32), np.empty((n, HQ), np.float32)
        self.score = np.empty((n, HKV), np.float32)
        self.memory = np.empty((HKV, LOCAL + HEAVY), np.int32)
        self.next = np.empty_like(self.memory)
        self.colsum = np.empty(self.memory.shape, np.float32)
        self.none = np.empty((HKV, 0), np.int32)

    def __call__(self) -> None:
        n = len(self.q)
        for start in range(0, n, BATCH):
            rows = slice(start, min(start + BATCH, n))
            new = {"q": self.q[rows], "k": self.k[rows], "v": self.v[rows], "chunk_size": CHUNK}
            state = {"o": self.o[rows], "m": self.m[rows], "l": self.l[rows]}
            self.kernels.run("ChunkedIntraAttention", None, {**new, **state, "colsum": self.score[rows]})
        previous = self.none
        for start in range(0, n, CHUNK):
            stop = min(start + CHUNK, n)
            rows = slice(start, stop)
            if start > 0:
                state = {"o_intra": self.o[rows], "m_intra": self.m[rows], "l_intra": self.l[rows]}
                call = {"q": self.q[rows], "memory": previous, **state, "colsum": self.colsum}
                self.kernels.run("MemoryFusedAttention", KV(self.k, self.v, n), call)
                for head in range(HKV):
                    self.score[previous[head], head] += self.colsum[head]
            if stop < n:
                window = {"chunk_range": (start, stop), "local": LOCAL}
                scores = {"score": self.score, "memory": previous, "memory_next": self.next}
                self.kernels.run("MemorySelect", None, {**scores, **window})
                self.memory, self.next = self.next, self.memory
                previous = self.memory


class QueryPhase2:
    """Phase 2 of the last chunk of a prompt under the default rule: candidates of its tiles, their sets, attention
    to them."""

    def __init__(self, kernels: Kernels, q: Array, k: Array, v: Array) -> None:
        self.kernels, self.q, self.kv = kernels, q[-CHUNK:], KV(k, v, len(k))
        self.rule, self.past = Query(chunk_size=CHUNK), len(k) - CHUNK
        (self.group,) = self.rule.groups(0, 0, Span(self.past, len(k)), HKV)
        tiles = len(self.group.tiles)
        self.candidates = np.empty((tiles, HKV, self.group.narrowed), np.int32)
        self.sets = np.empty((tiles, HKV, self.group.sets.memory), np.int32)
        self.past_of = np.full(tiles, self.past, np.int64)
        self.first_of = np.array([tile.start for tile in self.group.tiles])
        self.o = np.zeros_like(self.q)
        self.m, self.l = np.zeros((CHUNK, HQ), np.float32), np.ones((CHUNK, HQ), np.float32)

    def flops(self) -> float:
        """Of the dot products: two for a key that is attended to, one for a key that is voted for."""
        narrowed, memory = self.group.narrowed, self.group.sets.memory
        blocks = self.past // BLOCK if narrowed else 0  # by means and by variances
        votes = CHUNK // self.group.stride * (2 * blocks + (narrowed or self.past))
        return 2 * D * HQ * (votes + 2 * CHUNK * memory)

    def __call__(self) -> None:
        stride = self.group.stride
        tiles = {"q": self.q, "past": self.past_of, "tile": self.rule.tile_rows, "local": self.rule.local}
        votes = {**tiles, "stride": stride, "candidates": self.candidates}
        if self.group.narrowed:
            self.kernels.run("BlockSelect", self.kv, {**votes, "block_size": BLOCK})
        choose = {**votes, "reach": stride // 2, "first": self.first_of, "memory_next": self.sets}
        self.kernels.run("QuerySelect", self.kv, choose)
        state = {"o_intra": self.o, "m_intra": self.m, "l_intra": self.l}
        call = {"q": self.q, "memory": self.sets, "tile": self.rule.tile_rows, **state}
        self.kernels.run("TiledMemoryAttention", self.kv, call)


def torch_sdpa(q: Array, k: Array, v: Array) -> Callable[[], Any]:
    """torch's scaled_dot_product_attention, heads first and contiguous, as it likes them."""
    queries, keys, values = (torch.from_numpy(x).permute(1, 0, 2)[None].contiguous() for x in (q, k, v))

    def run() -> Any:
        with torch.inference_mode():
            return torch.nn.functional.scaled_dot_product_attention(
                queries, keys, values, is_causal=True, enable_gqa=True
            )

    return run


def ort_gqa(q: Array, k: Array, v: Array, threads: int) -> Callable[[], Any]:
    """ONNX Runtime's com.microsoft GroupQueryAttention: a whole prompt, an empty past."""
    n = len(q)

    def info(name: str, kind: int, shape: list[int]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    node = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_k", "past_v", "seqlens_k", "total"],
        ["o", "present_k", "present_v"],
        domain="com.microsoft",
        num_heads=HQ,
        kv_num_heads=HKV,
        scale=float(SCALE),
    )
    real = TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "gqa",
        [
            info("q", real, [1, n, HQ * D]),
            info("k", real, [1, n, HKV * D]),
            info("v", real, [1, n, HKV * D]),
            info("past_k", real, [1, HKV, 0, D]),
            info("past_v", real, [1, HKV, 0, D]),
            info("seqlens_k", TensorProto.INT32, [1]),
            info("total", TensorProto.INT32, [1]),
        ],
        [
            info("o", real, [1, n, HQ * D]),
            info("present_k", real, [1, HKV, n, D]),
            info("present_v", real, [1, HKV, n, D]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    empty = np.empty((1, HKV, 0, D), np.float32)
    feeds = {
        "q": q.reshape(1, n, -1),
        "k": k.reshape(1, n, -1),
        "v": v.reshape(1, n, -1),
        "past_k": empty,
        "past_v": empty,
        "seqlens_k": np.array([n - 1], np.int32),
        "total": np.array([n], np.int32),
    }
    return lambda: session.run(["o"], feeds)
