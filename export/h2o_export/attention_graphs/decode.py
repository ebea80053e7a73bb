"""Decode: a token's exact attention to the cache. Every bundle has this graph, whatever its policy."""

from __future__ import annotations

from typing import ClassVar

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
from h2o_runtime.operators import CACHED_ATTENTION


class Decode(AttentionStep):
    """CachedAttention."""

    name: ClassVar[str] = "decode"

    def graph(self, shape: AttentionShape) -> AttentionGraph:
        length = TensorSpec(name="length", dtype="int64", shape=())
        inputs = (queries("q", shape), *keys_values(("k_cache", "v_cache"), "cap", shape), length)
        # The window is said also where there is none: tools that put bodies in the place of nodes know no defaults.
        names = [tensor.name for tensor in inputs]
        node = operator("CachedAttention", names, ("o",), scale=shape.scale, softcap=shape.softcap, window=0)
        free = FreeSizes(sizes=(ROWS, CACHE), spans=("length",), step=True)
        return make_graph(self.name, inputs, (attended("o", shape),), [node], free)

    def feed(self, shape: AttentionShape, room: Room, draw: np.random.Generator) -> Feed:
        """One token, a little before the end of what is in use."""
        cache = caches(draw, shape, room.capacity)
        q = normal(draw, shape, 1, shape.query_heads, 2.0)
        return {"q": q, **cache, "length": np.array(room.rows - 3, np.int64)}

    def compute(self, call: OperatorCall) -> None:
        q, k_cache, v_cache = call.put("q", "k_cache", "v_cache")
        kv = KV(k_cache, v_cache, int(call.feed["length"]))
        call.provider.run(CACHED_ATTENTION, kv, q=q, o=call.out["o"])
