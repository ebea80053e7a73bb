"""Vertical-slash prefill: its two graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from h2o_export.policies.entry import PolicyEntry
from h2o_runtime.attention import AttentionShape
from h2o_runtime.bundles.manifest import FreeSize, FreeSizes, TensorSpec
from h2o_runtime.kv import KV
from h2o_runtime.operators import VERTICAL_SLASH_ATTENTION, VERTICAL_SLASH_SELECT
from h2o_runtime.policies.prefill.minference import NEAR, SINK, VOTES, VerticalSlash

_LENGTH = TensorSpec(name="length", dtype="int64", shape=())


@dataclass(frozen=True)
class LineStep(AttentionStep):
    """The lines that the last queries of the cache's rows choose."""

    policy: VerticalSlash
    name: ClassVar[str] = "lines"

    def graph(self, shape: AttentionShape) -> AttentionGraph:
        """As many lines as in a cache of the policy's counts or longer."""
        vertical, slash = self._counts
        outputs = (
            TensorSpec(name="columns", dtype="int32", shape=(shape.query_heads, vertical)),
            TensorSpec(name="distances", dtype="int32", shape=(shape.query_heads, slash)),
        )
        node = operator(
            "VerticalSlashSelect",
            ("q", "k_cache", "length"),
            ("columns", "distances"),
            scale=shape.scale,
            softcap=shape.softcap,
            vertical=vertical,
            slash=slash,
            sink=SINK,
            near=NEAR,
        )
        inputs = (queries("q", shape), *keys_values(("k_cache",), "cap", shape), _LENGTH)
        votes = FreeSize(name="n", counts="rows", most=VOTES)
        return make_graph(
            self.name, inputs, outputs, [node], FreeSizes(sizes=(votes, CACHE), spans=("length",))
        )

    @property
    def _counts(self) -> tuple[int, int]:
        return replace(self.policy, fraction=0.0).line_counts(2**31 - 1)

    def feed(self, shape: AttentionShape, room: Room, draw: np.random.Generator) -> Feed:
        keys = caches(draw, shape, room.capacity)["k_cache"]
        votes = normal(draw, shape, min(VOTES, room.batch, room.rows), shape.query_heads, 2.0)
        return {"q": votes, "k_cache": keys, "length": np.array(room.rows, np.int64)}

    def compute(self, call: OperatorCall) -> None:
        q, k_cache = call.put("q", "k_cache")
        kv = KV(k_cache, k_cache, int(call.feed["length"]))
        call.provider.run(
            VERTICAL_SLASH_SELECT,
            kv,
            q=q,
            sink=SINK,
            near=NEAR,
            columns=call.out["columns"],
            distances=call.out["distances"],
        )


@dataclass(frozen=True)
class TileStep(AttentionStep):
    """Attention to lines, however they were found."""

    name: ClassVar[str] = "vertical_slash"

    def graph(self, shape: AttentionShape) -> AttentionGraph:
        lists = (
            TensorSpec(name="columns", dtype="int32", shape=(shape.query_heads, "M")),
            TensorSpec(name="distances", dtype="int32", shape=(shape.query_heads, "D")),
        )
        inputs = (queries("q", shape), *keys_values(("k_cache", "v_cache"), "cap", shape), *lists, _LENGTH)
        names = [input.name for input in inputs]
        node = operator("VerticalSlashAttention", names, ("o",), scale=shape.scale, softcap=shape.softcap)
        slots = (FreeSize(name=name, counts="slots") for name in "MD")
        free = FreeSizes(sizes=(ROWS, CACHE, *slots), spans=("length",))
        return make_graph(self.name, inputs, (attended("o", shape),), [node], free)

    def feed(self, shape: AttentionShape, room: Room, draw: np.random.Generator) -> Feed:
        """Few lines: tiles turn diagonals into blocks, so many lines would cover everything."""
        n = min(160, room.batch, room.rows - 3)
        lists = {}
        for name, count in (("columns", 24), ("distances", 3)):
            lines = [draw.choice(room.rows - 3, count, replace=False) for _ in range(shape.query_heads)]
            lists[name] = np.sort(lines, axis=1).astype(np.int32)
        length = np.array(room.rows - 3, np.int64)
        return {
            "q": normal(draw, shape, n, shape.query_heads, 2.0),
            **caches(draw, shape, room.capacity),
            **lists,
            "length": length,
        }

    def compute(self, call: OperatorCall) -> None:
        q, k_cache, v_cache, columns, distances = call.put("q", "k_cache", "v_cache", "columns", "distances")
        kv = KV(k_cache, v_cache, int(call.feed["length"]))
        call.provider.run(
            VERTICAL_SLASH_ATTENTION, kv, q=q, columns=columns, distances=distances, o=call.out["o"]
        )


class VerticalSlashEntry(PolicyEntry[VerticalSlash]):
    policy = VerticalSlash

    def steps(self, policy: VerticalSlash) -> tuple[AttentionStep, ...]:
        return LineStep(policy), TileStep()
