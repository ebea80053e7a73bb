"""The subquadratic pattern: its graph, and its masked softmax reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

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
from h2o_export.policies.base import LayerAttention, MakeReference, PolicyEntry, Reference
from h2o_export.reference.softmax import capped, masked_softmax
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


@dataclass(frozen=True)
class SinglePass(LayerAttention):
    """All pairs of a layer at once, tokens beside landmarks, one mask."""

    pattern: Pattern

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, softcap: float | None, sinks: Tensor | None
    ) -> Tensor:
        marks = q.shape[1] // self.pattern.block if self.pattern.block else 0
        keys, values = (torch.cat((x, self._means(x, marks)), dim=1) for x in (k, v))
        group = len(q) // len(k)
        dots = q @ keys.repeat_interleave(group, dim=0).transpose(1, 2)  # [Hq, N, N + marks]
        dots = capped(dots, softcap)
        if self.pattern.count_bias and marks:
            dots[:, :, q.shape[1] :] += float(np.log(self.pattern.block))
        weights = masked_softmax(dots, torch.from_numpy(self._visible(q.shape[1], marks)), sinks)
        return weights @ values.repeat_interleave(group, dim=0)

    def _means(self, rows: Tensor, marks: int) -> Tensor:
        block = self.pattern.block
        return rows[:, : marks * block].reshape(len(rows), marks, max(block, 1), rows.shape[2]).mean(2)

    def _visible(self, n: int, marks: int) -> NDArray[np.bool_]:
        i, j = np.arange(n)[:, None], np.arange(n)
        seen = (i - j <= self.pattern.window) | (j < self.pattern.global_tokens) | self._power(i - j)
        gap = (i + 1) // max(self.pattern.block, 1) - 1 - np.arange(marks)
        seen_marks = (gap >= 0) & ((gap <= 1) | self._power(gap))
        return np.concatenate([(j <= i) & seen, seen_marks], axis=1)

    def _power(self, distance: NDArray[Any]) -> NDArray[np.bool_]:
        powers = (1 << np.arange(32)).tolist() if self.pattern.strides else []
        return np.isin(distance, powers)


class SubquadraticEntry(PolicyEntry[Subquadratic]):
    policy = Subquadratic

    def steps(self, policy: Subquadratic) -> tuple[AttentionStep, ...]:
        return (PatternStep(policy.pattern),)

    def reference(self, policy: Subquadratic) -> MakeReference:
        return lambda model, sets: Reference("single pass", SinglePass(policy.pattern))


def _constant(name: str, array: NDArray[Any]) -> NodeProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor: TensorProto = helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())
    return helper.make_node("Constant", [], [name], name=name, value=tensor)
