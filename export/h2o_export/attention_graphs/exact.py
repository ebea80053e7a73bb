"""Exact attention to the cache: a token's in every bundle, whatever its policy, and all in layers with a window."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from h2o_export.attention_graphs.graph import (
    CACHE,
    ROWS,
    AttentionGraph,
    attended,
    keys_values,
    make_graph,
    operator,
    queries,
)
from h2o_export.attention_graphs.step import AttentionStep, Feed, OperatorCall, Room, caches, normal
from h2o_runtime.attention import AttentionShape
from h2o_runtime.bundles.manifest import FreeSizes, TensorSpec
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import CACHED_ATTENTION


@dataclass(frozen=True)
class ExactAttention(AttentionStep):
    """CachedAttention: decode's, or a prompt's and a token's in layers with so wide a window."""

    window: int = 0

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"window_{self.window}" if self.window else "decode"

    def own_shape(self, model: ModelSpec) -> AttentionShape:
        if not self.window:
            return super().own_shape(model)
        spec = next(spec for spec in model.each_layer if spec.window == self.window)
        return replace(spec.attention(model.dtype), window=0)  # calls say it

    def graph(self, shape: AttentionShape) -> AttentionGraph:
        length = TensorSpec(name="length", dtype="int64", shape=())
        inputs = (queries("q", shape), *keys_values(("k_cache", "v_cache"), "cap", shape), length)
        # The window is said also where there is none: tools that put bodies in the place of nodes know no defaults.
        names = [tensor.name for tensor in inputs]
        node = operator(
            "CachedAttention", names, ("o",), scale=shape.scale, softcap=shape.softcap, window=self.window
        )
        free = FreeSizes(sizes=(ROWS, CACHE), spans=("length",), step=True)
        return make_graph(self.name, inputs, (attended("o", shape),), [node], free)

    def feed(self, shape: AttentionShape, room: Room, draw: np.random.Generator) -> Feed:
        """A little before the end of what is in use: one token, or with a window half of the rows."""
        cache = caches(draw, shape, room.capacity)
        n = min(room.batch, room.rows // 2) if self.window else 1
        q = normal(draw, shape, n, shape.query_heads, 2.0)
        return {"q": q, **cache, "length": np.array(room.rows - 3, np.int64)}

    def compute(self, call: OperatorCall) -> None:
        q, k_cache, v_cache = call.put("q", "k_cache", "v_cache")
        kv = KV(k_cache, v_cache, int(call.feed["length"]))
        call.provider.run(CACHED_ATTENTION, kv, q=q, o=call.out["o"], window=self.window)
