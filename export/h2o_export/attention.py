"""The attention graphs: weightless, one set for all layers, swapped when the sparse policy changes.

    phase1   ChunkedIntraAttention over a logical batch
    phase2   one chunk's step: attend to the memory and fuse, update scores, select the next memory
    decode   CachedAttention

Each file carries the function bodies of the whole domain, so any of them can be opened by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx
from onnx import NodeProto, TensorProto, helper

from h2o_export.operators import DOMAIN, VERSION, function_protos
from h2o_export.trace import OPSET
from h2o_runtime.attention import AttentionShape
from h2o_runtime.config import PrefillConfig
from h2o_runtime.manifest import FreeSize, FreeSizes, GraphSpec, TensorSpec

ROWS = FreeSize(name="n", counts="rows")
CACHE = FreeSize(name="cap", counts="cache")

_ELEMENT = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
}


@dataclass(frozen=True)
class AttentionGraph:
    spec: GraphSpec
    model: onnx.ModelProto


@dataclass(frozen=True)
class AttentionGraphBuilder:
    """Builds the attention graphs of one model for one prefill configuration."""

    model: AttentionShape
    prefill: PrefillConfig

    @property
    def score_heads(self) -> int:
        """Hs: memory sets a layer."""
        return self.model.kv_heads if self.prefill.score_heads == "kv" else self.model.query_heads

    def all(self) -> tuple[AttentionGraph, ...]:
        return self.phase1(), self.phase2(), self.decode()

    def phase1(self) -> AttentionGraph:
        node = _node(
            "ChunkedIntraAttention",
            ("q", "k", "v"),
            ("o", "m", "l", "colsum"),
            chunk_size=self.prefill.chunk_size,
            scale=self.model.scale,
            score_heads=self.score_heads,
        )
        kv = [self._tensor(name, "n", self.model.kv_heads) for name in ("k", "v")]
        inputs = (self._tensor("q", "n", self.model.query_heads), *kv)
        outputs = (
            self._tensor("o", "n", self.model.query_heads),
            *self._state(""),
            self._float("colsum", "n"),
        )
        return self._graph("phase1", inputs, outputs, [node], FreeSizes(sizes=(ROWS,)))

    def phase2(self) -> AttentionGraph:
        """Inputs q [n, Hq, d] of one full chunk, the caches, memory [Hs, Mp], the chunk's Phase 1 state,
        score [cap, Hs] (the chunk's rows filled from Phase 1 under `colsum`), chunk_range [start, stop]."""
        heads, scored = self.model.query_heads, self.score_heads
        memory = TensorSpec(name="memory", dtype="int32", shape=(scored, "Mp"))
        inputs = (
            self._tensor("q", "n", heads),
            self._tensor("k_cache", "cap", self.model.kv_heads),
            self._tensor("v_cache", "cap", self.model.kv_heads),
            memory,
            self._tensor("o_intra", "n", heads),
            *self._state("_intra"),
            self._float("score", "cap"),
            TensorSpec(name="chunk_range", dtype="int64", shape=(2,)),
        )
        outputs = (
            self._tensor("o", "n", heads),
            self._float("score_next", "cap"),
            TensorSpec(name="memory_next", dtype="int32", shape=(scored, self.prefill.memory)),
        )
        fused = _node(
            "MemoryFusedAttention",
            ("q", "k_cache", "v_cache", "memory", "o_intra", "m_intra", "l_intra"),
            ("o", "colsum"),
            scale=self.model.scale,
        )
        select = _node(
            "MemorySelect",
            ("score_next", "memory", "chunk_range"),
            ("memory_next",),
            local=self.prefill.local,
            heavy=self.prefill.heavy,
            sink=self.prefill.sink,
        )
        update = self._add_colsum() if self.prefill.score == "colsum" else self._replace_by_votes()
        rows = FreeSize(name="n", counts="rows", most=self.prefill.chunk_size)
        slots = FreeSize(name="Mp", counts="slots", most=self.prefill.memory)
        free = FreeSizes(sizes=(rows, CACHE, slots), spans=("chunk_range",))
        return self._graph("phase2", inputs, outputs, [fused, *update, select], free)

    def decode(self) -> AttentionGraph:
        heads = self.model.query_heads
        caches = [self._tensor(name, "cap", self.model.kv_heads) for name in ("k_cache", "v_cache")]
        length = TensorSpec(name="length", dtype="int64", shape=())
        node = _node("CachedAttention", ("q", "k_cache", "v_cache", "length"), ("o",), scale=self.model.scale)
        inputs = (self._tensor("q", "n", heads), *caches, length)
        free = FreeSizes(sizes=(ROWS, CACHE), spans=("length",), step=True)
        return self._graph("decode", inputs, (self._tensor("o", "n", heads),), [node], free)

    def _add_colsum(self) -> list[NodeProto]:
        """score_next = score, with colsum added in the rows of the memory."""
        return [
            _standard("Transpose", ("memory",), "memory_rows", perm=[1, 0]),  # [Mp, Hs]
            _standard("Transpose", ("colsum",), "colsum_rows", perm=[1, 0]),
            _standard("GatherElements", ("score", "memory_rows"), "score_before", axis=0),
            _standard("Add", ("score_before", "colsum_rows"), "score_after"),
            _standard("ScatterElements", ("score", "memory_rows", "score_after"), "score_next", axis=0),
        ]

    def _replace_by_votes(self) -> list[NodeProto]:
        """score_next = score, with the votes of the chunk's last queries in the rows of memory and chunk."""
        window = self.prefill.score_window
        return [
            _constant("window_start", [-window]),
            _constant("end", [2**31 - 1]),
            _constant("rows", [0]),
            _constant("two", [2]),
            _constant("one", [1]),
            _standard("Slice", ("q", "window_start", "end", "rows"), "q_window"),
            _standard("Slice", ("chunk_range", "rows", "one", "rows"), "start"),
            _standard("Slice", ("chunk_range", "one", "two", "rows"), "stop"),
            _standard("Slice", ("k_cache", "start", "stop", "rows"), "k_chunk"),
            _node("MemoryGather", ("k_cache", "v_cache", "memory"), ("k_mem", "v_mem")),
            _node(
                "CandidateScore",
                ("q_window", "k_chunk", "k_mem"),
                ("score_memory", "score_chunk"),
                scale=self.model.scale,
            ),
            _standard("Transpose", ("memory",), "memory_rows", perm=[1, 0]),
            _standard("Transpose", ("score_memory",), "score_memory_rows", perm=[1, 0]),
            _standard(
                "ScatterElements", ("score", "memory_rows", "score_memory_rows"), "score_ranked", axis=0
            ),
            _standard("Shape", ("score",), "capacity", start=0, end=1),
            _standard("Slice", ("score_ranked", "rows", "start", "rows"), "score_head"),
            _standard("Slice", ("score_ranked", "stop", "capacity", "rows"), "score_rest"),
            _standard("Concat", ("score_head", "score_chunk", "score_rest"), "score_next", axis=0),
        ]

    def _tensor(self, name: str, rows: str, heads: int) -> TensorSpec:
        return TensorSpec(name=name, dtype=self.model.dtype.name, shape=(rows, heads, self.model.head_size))  # type: ignore[arg-type]

    def _float(self, name: str, rows: str) -> TensorSpec:
        return TensorSpec(name=name, dtype="float32", shape=(rows, self.score_heads))

    def _state(self, suffix: str) -> tuple[TensorSpec, ...]:
        shape = ("n", self.model.query_heads)
        return tuple(TensorSpec(name=name + suffix, dtype="float32", shape=shape) for name in ("m", "l"))

    def _graph(
        self,
        name: str,
        inputs: Iterable[TensorSpec],
        outputs: Iterable[TensorSpec],
        nodes: list[NodeProto],
        free: FreeSizes,
    ) -> AttentionGraph:
        inputs, outputs = tuple(inputs), tuple(outputs)
        graph = helper.make_graph(
            nodes, name, list(map(_value_info, inputs)), list(map(_value_info, outputs))
        )
        model = helper.make_model(
            graph,
            functions=function_protos(),
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, VERSION)],
            ir_version=10,
            producer_name="h2o-export",
        )
        spec = GraphSpec(
            name=name,
            file=f"onnx/{name}.onnx",
            kind="attention",
            inputs=inputs,
            outputs=outputs,
            free=free,
        )
        return AttentionGraph(spec, model)


def _node(operator: str, inputs: Iterable[str], outputs: Iterable[str], **attributes: float) -> NodeProto:
    return helper.make_node(operator, list(inputs), list(outputs), name=operator, domain=DOMAIN, **attributes)  # type: ignore[arg-type]


def _standard(operator: str, inputs: Iterable[str], output: str, **attributes: object) -> NodeProto:
    return helper.make_node(operator, list(inputs), [output], name=output, **attributes)  # type: ignore[arg-type]


def _constant(name: str, values: list[int]) -> NodeProto:
    tensor = helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
    return helper.make_node("Constant", [], [name], name=name, value=tensor)


def _value_info(spec: TensorSpec) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(spec.name, _ELEMENT[spec.dtype], list(spec.shape))
