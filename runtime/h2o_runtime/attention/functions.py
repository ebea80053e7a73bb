"""The reference provider: operators run as their ONNX function bodies, on ONNX Runtime.

It executes the very functions that the bundle's attention graphs carry, with whatever attributes the prefill
asks for. It is exact and runs everywhere, but is made for checking rather than for speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from h2o_runtime.attention.base import AttentionShape, Float32, Int32, PartialSoftmax, each_tile
from h2o_runtime.attention.host_rows import HostRows, plain_rows
from h2o_runtime.bundle import Bundle
from h2o_runtime.devices import Tensor
from h2o_runtime.errors import BackendError, BundleError
from h2o_runtime.kv import KV
from h2o_runtime.operators import (
    CACHED_ATTENTION,
    CANDIDATE_SCORE,
    CHUNKED_INTRA_ATTENTION,
    DOMAIN,
    LANDMARK_UPDATE,
    MEMORY_FUSED_ATTENTION,
    MEMORY_GATHER,
    MEMORY_SELECT,
    PAGE_ATTENTION,
    PAGE_BOUNDS,
    PAGE_SELECT,
    QUERY_SELECT,
    SUBQUADRATIC_ATTENTION,
    VERTICAL_SLASH_ATTENTION,
    VERTICAL_SLASH_SELECT,
    Operator,
)
from h2o_runtime.ort.session import open_session, run_bound
from h2o_runtime.process import default_threads

LINE_TILE = 64  # rows that see the same diagonals: calls are not cut inside
SCORE_BYTES = 64 << 20  # cached_attention takes as many rows at once as keep its score matrix below this


class FunctionProvider(HostRows):
    """Runs each operator as a one-node ONNX model."""

    name = "functions"
    in_graphs = False

    def __init__(self, bundle: Bundle, threads: int | None = None) -> None:
        self.bundle = bundle
        self.threads = threads or default_threads()
        self._sessions: dict[tuple[Any, ...], Any] = {}

    def takes(self, shape: AttentionShape) -> bool:
        return True

    def activate(self, shape: AttentionShape) -> None:
        """Raises BackendError without the onnx package, BundleError for a broken graph."""
        try:
            import onnx
        except ImportError:
            raise BackendError(
                "running attention through ONNX function bodies needs the package onnx: pip install onnx, or "
                "choose the native attention provider"
            ) from None
        path = self.bundle.path(self.bundle.graph("decode"))
        try:
            model = onnx.load(path)
        except Exception as error:  # protobuf's decoding errors differ between its implementations
            raise BundleError(
                f"{path}: not a readable ONNX file ({error}); export the checkpoint again"
            ) from error
        self._shape = shape
        self._functions = list(model.functions)
        self._opsets = list(model.opset_import)

    def deactivate(self) -> None:
        self._sessions.clear()

    def chunked_intra_attention(
        self, q: Tensor, k: Tensor, v: Tensor, chunk_size: int, state: PartialSoftmax, colsum: Float32 | None
    ) -> None:
        # One chunk at a time: the body holds a whole score matrix, and chunks do not see each other.
        heads = self._shape.kv_heads if colsum is None else colsum.shape[1]
        values = np.ascontiguousarray(k[:, :, : self._shape.value_size]) if v is k else v
        for start in range(0, len(q), chunk_size):
            stop = min(start + chunk_size, len(q))
            part = state.rows(start, stop)
            outputs = {"o": part.o, "m": part.m, "l": part.l}
            if colsum is not None:
                outputs["colsum"] = colsum[start:stop]
            inputs = {"q": q[start:stop], "k": k[start:stop], "v": values[start:stop]}
            attributes = {"chunk_size": chunk_size, "scale": self._shape.scale, "score_heads": heads}
            self._run(CHUNKED_INTRA_ATTENTION, inputs, outputs, attributes)

    def memory_fused_attention(
        self,
        q: Tensor,
        kv: KV,
        memory: Int32,
        state: PartialSoftmax,
        colsum: Float32 | None,
    ) -> None:
        k_cache, v_cache = self._plain(kv)
        inputs = {
            "q": q,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "memory": memory,
            "o_intra": state.o.copy(),  # the graph may not write over its own input
            "m_intra": state.m,
            "l_intra": state.l,
        }
        outputs = {"o": state.o} if colsum is None else {"o": state.o, "colsum": colsum}
        self._run(MEMORY_FUSED_ATTENTION, inputs, outputs, {"scale": self._shape.scale})

    def tiled_memory_attention(
        self, q: Tensor, kv: KV, memory: Int32, tile: int, state: PartialSoftmax
    ) -> None:
        each_tile(self, q, kv, memory, tile, state)

    def candidate_score(
        self,
        q_window: Tensor,
        k: Tensor,
        kv: KV,
        memory: Int32,
        score_memory: Float32,
        score_chunk: Float32,
    ) -> None:
        k_cache, v_cache = self._plain(kv)
        k_mem = np.empty((*memory.shape, self._shape.head_size), self._shape.dtype)
        if memory.size:
            gathered = {"k_mem": k_mem}
            inputs = {"k_cache": k_cache, "v_cache": v_cache, "memory": memory}
            self._run(MEMORY_GATHER, inputs, gathered, {})
        outputs = {"score_mem": score_memory, "score_chunk": score_chunk}
        inputs = {"q_window": q_window, "k": k, "k_mem": k_mem}
        self._run(CANDIDATE_SCORE, inputs, outputs, {"scale": self._shape.scale})

    def memory_select(
        self, score: Float32, memory: Int32, start: int, stop: int, local: int, sink: int, out: Int32
    ) -> None:
        inputs = {"score": score, "memory": memory, "chunk_range": np.array([start, stop], np.int64)}
        attributes = {"local": local, "heavy": out.shape[1] - local, "sink": sink}
        self._run(MEMORY_SELECT, inputs, {"memory_next": out}, attributes)

    def query_select(
        self,
        q: Tensor,
        kv: KV,
        candidates: Int32,
        past: Tensor,
        tile: int,
        stride: int,
        share: int,
        reach: int,
        local: int,
        sink: int,
        out: Int32,
    ) -> None:
        k_cache, _ = self._plain(kv)
        attributes = {
            "scale": self._shape.scale,
            "tile": tile,
            "stride": stride,
            "share": 1,
            "reach": reach,
            "local": local,
            "heavy": out.shape[2] - local,
            "sink": sink,
        }
        for i, end in enumerate(past):  # one at a time: the body copies all keys that a tile looks at
            inputs = {
                "q": q[i * tile : (i + 1) * tile],
                "k_cache": k_cache[:end],
                "candidates": candidates[i // share : i // share + 1] if candidates.size else candidates[:1],
                "past": past[i : i + 1],
            }
            self._run(QUERY_SELECT, inputs, {"memory_next": out[i : i + 1]}, attributes)

    def cached_attention(self, q: Tensor, kv: KV, o: Tensor) -> None:
        k_cache, v_cache = self._plain(kv)
        length = int(kv.length)
        past = length - len(q)
        rows = max(1, SCORE_BYTES // (4 * self._shape.query_heads * length))
        for start in range(0, len(q), rows):
            stop = min(start + rows, len(q))
            inputs = {
                "q": q[start:stop],
                "k_cache": k_cache,
                "v_cache": v_cache,
                "length": np.array(past + stop, np.int64),
            }
            self._run(CACHED_ATTENTION, inputs, {"o": o[start:stop]}, {"scale": self._shape.scale})

    def landmark_update(
        self, kv: KV, k_mean: Float32, v_mean: Float32, start: int | Tensor, block_size: int
    ) -> None:
        k_cache, v_cache = self._plain(kv)
        inputs = {
            "k_cache": k_cache,
            "v_cache": v_cache,
            "k_mean": k_mean.copy(),  # the graph may not write over its own input
            "v_mean": v_mean.copy(),
            "start": np.array(start, np.int64).reshape(()),
            "length": np.array(kv.length, np.int64),
        }
        outputs = {"k_mean_next": k_mean, "v_mean_next": v_mean}
        self._run(LANDMARK_UPDATE, inputs, outputs, {"block_size": block_size})

    def subquadratic_attention(
        self,
        q: Tensor,
        kv: KV,
        k_mean: Float32,
        v_mean: Float32,
        global_rows: Int32,
        window: int,
        block_size: int,
        strides: int,
        count_bias: int,
        o: Tensor,
    ) -> None:
        k_cache, v_cache = self._plain(kv)
        inputs = {"k_cache": k_cache, "v_cache": v_cache, "k_mean": k_mean, "v_mean": v_mean}
        attributes: dict[str, float] = {
            "window": window,
            "block_size": block_size,
            "strides": strides,
            "count_bias": count_bias,
            "scale": self._shape.scale,
        }
        length = int(kv.length)
        past = length - len(q)
        rows = max(1, SCORE_BYTES // (4 * self._shape.query_heads * length))
        for start in range(0, len(q), rows):
            stop = min(start + rows, len(q))
            call = {"q": q[start:stop], **inputs, "global_rows": global_rows}
            call["length"] = np.array(past + stop, np.int64)
            self._run(SUBQUADRATIC_ATTENTION, call, {"o": o[start:stop]}, attributes)

    def page_bounds(
        self, kv: KV, k_min: Float32, k_max: Float32, start: int | Tensor, page_size: int
    ) -> None:
        inputs = {
            "k_cache": self._plain(kv)[0],
            "k_min": k_min.copy(),  # the graph may not write over its own input
            "k_max": k_max.copy(),
            "start": np.array(start, np.int64).reshape(()),
            "length": np.array(kv.length, np.int64),
        }
        outputs = {"k_min_next": k_min, "k_max_next": k_max}
        self._run(PAGE_BOUNDS, inputs, outputs, {"page_size": page_size})

    def page_select(
        self, q: Tensor, k_min: Float32, k_max: Float32, kv: KV, page_size: int, page_list: Int32
    ) -> None:
        sets, budget = page_list.shape
        inputs = {"q": q, "k_min": k_min, "k_max": k_max, "length": np.array(kv.length, np.int64)}
        attributes: dict[str, float] = {"page_size": page_size, "budget": budget, "score_heads": sets}
        self._run(PAGE_SELECT, inputs, {"page_list": page_list}, attributes)

    def page_attention(self, q: Tensor, kv: KV, page_list: Int32, page_size: int, o: Tensor) -> None:
        k_cache, v_cache = self._plain(kv)
        inputs = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "page_list": page_list}
        inputs["length"] = np.array(kv.length, np.int64)
        attributes: dict[str, float] = {"page_size": page_size, "scale": self._shape.scale}
        self._run(PAGE_ATTENTION, inputs, {"o": o}, attributes)

    def vertical_slash_select(
        self, q: Tensor, kv: KV, sink: int, near: int, columns: Int32, distances: Int32
    ) -> None:
        k_cache, _ = self._plain(kv)
        inputs = {"q": q, "k_cache": k_cache, "length": np.array(kv.length, np.int64)}
        attributes = {
            "scale": self._shape.scale,
            "vertical": columns.shape[1],
            "slash": distances.shape[1],
            "sink": sink,
            "near": near,
        }
        outputs = {"columns": columns, "distances": distances}
        self._run(VERTICAL_SLASH_SELECT, inputs, outputs, attributes)

    def vertical_slash_attention(
        self, q: Tensor, kv: KV, columns: Int32, distances: Int32, o: Tensor
    ) -> None:
        k_cache, v_cache = self._plain(kv)
        inputs = {"k_cache": k_cache, "v_cache": v_cache, "columns": columns, "distances": distances}
        length = int(kv.length)
        past = length - len(q)
        rows = max(1, SCORE_BYTES // (4 * self._shape.query_heads * length * LINE_TILE)) * LINE_TILE
        for start in range(0, len(q), rows):
            stop = min(start + rows, len(q))
            call = {"q": q[start:stop], **inputs, "length": np.array(past + stop, np.int64)}
            self._run(VERTICAL_SLASH_ATTENTION, call, {"o": o[start:stop]}, {"scale": self._shape.scale})

    def _plain(self, kv: KV) -> tuple[Tensor, Tensor]:
        return plain_rows(kv, self._shape.dtype, self._shape.value_size)

    def _run(
        self,
        operator: Operator,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        attributes: dict[str, float],
    ) -> None:
        """Execute one operator; of its outputs only those in `outputs` are computed."""
        key = (operator.name, tuple(outputs), tuple(attributes.items()))
        if key not in self._sessions:
            model = self._one_node_model(operator, inputs, outputs, attributes)
            self._sessions[key] = open_session(model, self.threads)
        run_bound(self._sessions[key], inputs, outputs)

    def _one_node_model(
        self,
        operator: Operator,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        attributes: dict[str, float],
    ) -> bytes:
        from onnx import helper

        # Every dimension is left free: one session serves all sizes.
        def info(name: str, array: Any) -> Any:
            element = helper.np_dtype_to_tensor_dtype(array.dtype)
            return helper.make_tensor_value_info(name, element, [None] * array.ndim)

        node = helper.make_node(
            operator.name,
            operator.input_names,
            [name if name in outputs else "" for name in operator.output_names],
            domain=DOMAIN,
            **attributes,  # type: ignore[arg-type]
        )
        graph = helper.make_graph(
            [node],
            operator.name,
            [info(name, array) for name, array in inputs.items()],
            [info(name, array) for name, array in outputs.items()],
        )
        model = helper.make_model(graph, functions=self._functions, opset_imports=self._opsets, ir_version=10)
        serialized: bytes = model.SerializeToString()
        return serialized
