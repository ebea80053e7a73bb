"""The subquadratic pattern: its graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from h2o_export.attention_graphs import AttentionStep
from h2o_export.attention_graphs.graph import (
    CACHE,
    ROWS,
    AttentionGraph,
    attended,
    constant,
    keys_values,
    make_graph,
    operator,
    queries,
    standard,
)
from h2o_export.attention_graphs.step import Feed, OperatorCall, Room, caches, normal
from h2o_export.policies.entry import PolicyEntry
from h2o_runtime.attention import AttentionShape
from h2o_runtime.bundles.manifest import FreeSizes, TensorSpec
from h2o_runtime.kv import KV
from h2o_runtime.operators import LANDMARK_UPDATE, SUBQUADRATIC_ATTENTION
from h2o_runtime.policies.prefill.subquadratic import Subquadratic
from h2o_runtime.policies.subquadratic import Pattern


@dataclass(frozen=True)
class PatternStep(AttentionStep):
    """Landmarks of all of the cache, then the attention of its last n rows."""

    pattern: Pattern
    name: ClassVar[str] = "subquadratic"

    def graph(self, shape: AttentionShape) -> AttentionGraph:
        length = TensorSpec(name="length", dtype="int64", shape=())
        inputs = (queries("q", shape), *keys_values(("k_cache", "v_cache"), "cap", shape), length)
        rows = np.arange(self.pattern.global_tokens, dtype=np.int32)
        attention = operator(
            "SubquadraticAttention",
            ("q", "k_cache", "v_cache", "k_mean", "v_mean", "global_rows", "length"),
            ("o",),
            window=self.pattern.window,
            block_size=self.pattern.block,
            strides=int(self.pattern.strides),
            count_bias=int(self.pattern.count_bias),
            scale=shape.scale,
            softcap=shape.softcap,
        )
        nodes = [*self._landmarks(shape), _constant("global_rows", rows), attention]
        free = FreeSizes(sizes=(ROWS, CACHE), spans=("length",))
        return make_graph(self.name, inputs, (attended("o", shape),), nodes, free)

    def _landmarks(self, shape: AttentionShape) -> list[NodeProto]:
        row = [shape.kv_heads, shape.head_size]
        if not self.pattern.block:
            nothing = np.zeros((1, *row), np.float32)
            return [_constant(name, nothing) for name in ("k_mean", "v_mean")]
        means, zero = ("none", "none"), numpy_helper.from_array(np.zeros(1, np.float32))
        return [
            constant("short", [self.pattern.block - 1]),
            constant("size", [self.pattern.block]),
            constant("row", row),
            standard("Shape", ("k_cache",), "capacity", start=0, end=1),
            standard("Add", ("capacity", "short"), "covered"),
            standard("Div", ("covered", "size"), "blocks"),
            standard("Concat", ("blocks", "row"), "shape", axis=0),
            standard("ConstantOfShape", ("shape",), "none", value=zero),
            _constant("start", np.array(0, np.int64)),
            operator(
                "LandmarkUpdate",
                ("k_cache", "v_cache", *means, "start", "length"),
                ("k_mean", "v_mean"),
                block_size=self.pattern.block,
            ),
        ]

    def feed(self, shape: AttentionShape, room: Room, draw: np.random.Generator) -> Feed:
        """Some rows, slightly before the end of those in use."""
        n = min(96, room.batch, room.rows - 3)
        q = normal(draw, shape, n, shape.query_heads, 2.0)
        return {"q": q, **caches(draw, shape, room.capacity), "length": np.array(room.rows - 3, np.int64)}

    def compute(self, call: OperatorCall) -> None:
        q, k_cache, v_cache = call.put("q", "k_cache", "v_cache")
        kv, device, pattern = KV(k_cache, v_cache, int(call.feed["length"])), call.device, self.pattern
        means = (pattern.blocks(len(k_cache)), *k_cache.shape[1:])
        k_mean, v_mean = device.zeros(means, np.float32), device.zeros(means, np.float32)
        rows = device.zeros((pattern.global_tokens,), np.int32)
        if pattern.global_tokens:
            device.upload(np.arange(pattern.global_tokens, dtype=np.int32), rows)
        if pattern.block:
            call.provider.run(
                LANDMARK_UPDATE, kv, k_mean=k_mean, v_mean=v_mean, start=0, block_size=pattern.block
            )
        call.provider.run(
            SUBQUADRATIC_ATTENTION,
            kv,
            q=q,
            k_mean=k_mean,
            v_mean=v_mean,
            global_rows=rows,
            window=pattern.window,
            block_size=pattern.block,
            strides=int(pattern.strides),
            count_bias=int(pattern.count_bias),
            o=call.out["o"],
        )


class SubquadraticEntry(PolicyEntry[Subquadratic]):
    policy = Subquadratic

    def steps(self, policy: Subquadratic) -> tuple[AttentionStep, ...]:
        return (PatternStep(policy.pattern),)


def _constant(name: str, array: NDArray[Any]) -> NodeProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor: TensorProto = helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())
    return helper.make_node("Constant", [], [name], name=name, value=tensor)
