"""Vertical-slash prefill: its two graphs, and its masked softmax reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

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
from h2o_export.policies.base import LayerAttention, MakeReference, PolicyEntry, Reference
from h2o_export.reference.softmax import capped, masked_softmax
from h2o_runtime.attention import AttentionShape
from h2o_runtime.bundles.manifest import FreeSize, FreeSizes, TensorSpec
from h2o_runtime.kv import KV
from h2o_runtime.operators import VERTICAL_SLASH_ATTENTION, VERTICAL_SLASH_SELECT
from h2o_runtime.policies.prefill.minference import NEAR, SINK, TILE, VOTES, VerticalSlash

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


@dataclass(frozen=True)
class SinglePass(LayerAttention):
    """All pairs of a layer at once; the tiles' visible keys are a mask."""

    policy: VerticalSlash

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, softcap: float | None, sinks: Tensor | None
    ) -> Tensor:
        k, v = (rows.repeat_interleave(len(q) // len(rows), dim=0) for rows in (k, v))
        dots = capped(q @ k.transpose(1, 2), softcap)
        n = dots.shape[1]
        size = self.policy.chunk_size if self.policy.estimate == "chunk" else n
        seen = torch.zeros_like(dots, dtype=torch.bool)
        for start in range(0, n, size):
            stop = min(start + size, n)
            for head, lines in enumerate(self._lines(dots[:, max(start, stop - VOTES) : stop, :stop])):
                for first in range(start, stop, TILE):
                    seen[head, first : min(first + TILE, stop), : first + TILE] = _tile(first + TILE, *lines)[
                        :n
                    ]
        seen &= torch.ones(n, n, dtype=torch.bool).tril()
        weights = masked_softmax(dots, seen, sinks)
        return weights @ v

    def _lines(self, dots: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Columns and distances of every head; dots [Hq, votes, keys] are of the last rows."""
        _, votes, keys = dots.shape
        back = torch.arange(keys - votes, keys)[:, None] - torch.arange(keys)
        p = torch.softmax(dots.masked_fill(back < 0, -torch.inf), dim=-1)
        turned = p.gather(2, back.clamp(min=0).expand_as(p)).masked_fill(back < 0, 0)
        budgets = zip((p, turned), self.policy.line_counts(keys), (SINK, NEAR), strict=True)
        columns, distances = (_best(x.sum(1), count, forced) for x, count, forced in budgets)
        return list(zip(columns, distances, strict=True))


def _best(score: Tensor, count: int, forced: int) -> Tensor:
    """The first `forced` and the best others: [Hq, count] from [Hq, keys]."""
    rank = torch.where(score < 1e-30, 0.0, score)
    rank[:, :forced] = torch.inf
    return torch.sort(rank, dim=1, descending=True, stable=True).indices[:, :count]


def _tile(end: int, columns: Tensor, distances: Tensor) -> Tensor:
    """The keys that the tile of rows before `end` sees, bool [end]; its later rows see fewer of them."""
    seen = torch.zeros(end, dtype=torch.bool)
    seen[columns[columns < end]] = True
    last = -end - TILE
    for distance in sorted({0, *distances[distances < end].tolist()}, reverse=True):
        stop = max(end - distance, TILE)
        if stop <= last:
            continue
        last = stop if stop > last + TILE else last + TILE
        seen[last - TILE : last] = True
    return seen


class VerticalSlashEntry(PolicyEntry[VerticalSlash]):
    policy = VerticalSlash

    def steps(self, policy: VerticalSlash) -> tuple[AttentionStep, ...]:
        return LineStep(policy), TileStep()

    def reference(self, policy: VerticalSlash) -> MakeReference:
        return lambda model, sets: Reference("single pass", SinglePass(policy))
