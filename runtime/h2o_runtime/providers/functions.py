"""The reference provider: runs operators as their ONNX function bodies, on ONNX Runtime.

It executes the functions of the bundle's attention graphs, with the attributes of the prefill. It is exact
and runs everywhere, but is made for checking, not for speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from h2o_runtime.attention.provider import AttentionShape, PartialSoftmax, each_tile
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.onnx_model import read_model
from h2o_runtime.devices import Tensor
from h2o_runtime.errors import BundleError
from h2o_runtime.kv import KV
from h2o_runtime.operator_spec import Attribute, Operator
from h2o_runtime.operators import (
    BLOCK_SELECT,
    CACHED_ATTENTION,
    CACHED_CANDIDATE_SCORE,
    CANDIDATE_SCORE,
    CHUNKED_INTRA_ATTENTION,
    DOMAIN,
    KEYS,
    LENGTH,
    MEMORY_ATTENTION,
    MEMORY_FUSED_ATTENTION,
    MEMORY_GATHER,
    ONLINE_SOFTMAX_FUSION,
    OPERATORS,
    PARTIAL_ATTENTION,
    PROMPT_ATTENTION,
    QUERY_SELECT,
    TILED_MEMORY_ATTENTION,
    VALUES,
    VERTICAL_SLASH_ATTENTION,
)
from h2o_runtime.ort.session import open_session, run_bound
from h2o_runtime.process import default_threads
from h2o_runtime.providers.host_operators import contiguous_rows, run_on_host

SCORE_BYTES = 64 << 20  # of a score matrix; as many rows are computed at once as stay below this
ROWS_TOGETHER = {VERTICAL_SLASH_ATTENTION: 64}  # rows with the same diagonals: calls are not cut inside


class FunctionProvider:
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
        """Raises what `read_model` raises."""
        model = read_model(self.bundle.path(self.bundle.graph("decode")))
        self.shape = shape
        self._functions = list(model.functions)
        self._opsets = list(model.opset_import)

    def deactivate(self) -> None:
        self._sessions.clear()

    def run(self, operator: Operator, kv: KV | None = None, **arguments: Any) -> None:
        if operator in _ADAPTED:
            _ADAPTED[operator](self, kv, **arguments)
        elif operator not in OPERATORS:
            run_on_host(self, operator, kv, arguments)
        elif self._may_be_cut(operator):
            self._run_in_blocks(operator, kv, arguments)
        else:
            self.run_body(operator, kv, arguments)

    def run_body(self, operator: Operator, kv: KV | None, arguments: dict[str, Any]) -> None:
        """Execute an operator's body; computes only the outputs that are used."""
        given = {name: value for name, value in arguments.items() if value is not None}
        unknown = (
            set(given)
            - set(operator.input_names)
            - set(operator.output_names)
            - set(operator.attribute_names)
        )
        if unknown:
            raise ValueError(f"{operator.method} has no argument {', '.join(sorted(unknown))}")
        inputs = self._inputs(operator, kv, given)
        outputs = {}
        for tensor in operator.outputs:
            if tensor.name in given:
                outputs[tensor.name] = given[tensor.name]
            elif tensor.in_place:
                outputs[tensor.name] = given[tensor.in_place]
        for name, array in inputs.items():  # the graph must not write over its own input
            if any(array is output for output in outputs.values()):
                inputs[name] = array.copy()
        attributes = {
            each.name: value
            for each in operator.attributes
            if (value := self._attribute(operator, each, given)) != each.default
        }
        key = (operator.name, tuple(outputs), tuple(attributes.items()))
        if key not in self._sessions:
            self._check_body(operator, attributes)
            model = self._one_node_model(operator, inputs, outputs, attributes)
            self._sessions[key] = open_session(model, self.threads)
        run_bound(self._sessions[key], inputs, outputs)

    def _inputs(self, operator: Operator, kv: KV | None, given: dict[str, Any]) -> dict[str, Any]:
        caches: dict[str, Any] = {}
        if kv is not None:
            k_cache, v_cache = contiguous_rows(kv, self.shape.dtype, self.shape.value_size)
            caches = {KEYS: k_cache, VALUES: v_cache, LENGTH: np.array(int(kv.length), np.int64)}
        inputs = {}
        for tensor in operator.inputs:
            if tensor.name not in caches and tensor.name not in given:
                raise ValueError(f"{operator.method}: {tensor.name} is missing")
            value = caches[tensor.name] if tensor.name in caches else given[tensor.name]
            if tensor.dtype == "int64":
                sizes = tuple(int(size) if size.isdecimal() else -1 for size in tensor.shape)
                value = np.asarray(value, np.int64).reshape(sizes)
            inputs[tensor.name] = value
        return inputs

    def _attribute(self, operator: Operator, attribute: Attribute, given: dict[str, Any]) -> float:
        """The given attribute, or the value that follows from the model or an output's size."""
        if attribute.name in given:
            number: float = given[attribute.name]
            return number
        if attribute.of_model:
            of_model: float = getattr(self.shape, attribute.name)
            return of_model
        others = [each.name for each in operator.attributes if each.gives == attribute.gives]
        rest = sum(given[name] for name in others if name != attribute.name)
        for tensor in operator.outputs:
            if attribute.gives in tensor.shape and tensor.name in given:
                size: int = given[tensor.name].shape[tensor.shape.index(attribute.gives)]
                return int(size - rest)
        if attribute.gives == "Hs":
            return self.shape.kv_heads
        raise ValueError(f"{operator.method}: {attribute.name} is missing")

    @staticmethod
    def _may_be_cut(operator: Operator) -> bool:
        """Whether all outputs are per row, with row r at cache row length - n + r."""
        return LENGTH in operator.input_names and all(each.shape[0] == "n" for each in operator.outputs)

    def _run_in_blocks(self, operator: Operator, kv: KV | None, arguments: dict[str, Any]) -> None:
        """As many rows at once as keep their score matrix below SCORE_BYTES."""
        assert kv is not None
        n, length = len(arguments["q"]), int(kv.length)
        whole = ROWS_TOGETHER.get(operator, 1)
        rows = max(1, SCORE_BYTES // (4 * self.shape.query_heads * length * whole)) * whole
        for start in range(0, n, rows):
            block = slice(start, min(start + rows, n))
            cut = {name: arguments[name][block] for name in ("q", *operator.output_names)}
            self.run_body(operator, kv.upto(length - n + block.stop), {**arguments, **cut})

    def _check_body(self, operator: Operator, attributes: dict[str, float]) -> None:
        """Raises BundleError if the bundle has no body of the operator, or one that asks for other attributes."""
        advice = "export the checkpoint again, or choose the native attention provider"
        bodies = [body for body in self._functions if body.name == operator.name]
        if not bodies:
            raise BundleError(f"{self.bundle.folder}: it has no function {operator.name}; {advice}")
        asked = {name for body in bodies for name in body.attribute}
        optional = {attribute.name for body in bodies for attribute in body.attribute_proto}
        if gone := asked - set(attributes):
            raise BundleError(
                f"{self.bundle.folder}: its function {operator.name} asks for {', '.join(sorted(gone))}, which the "
                f"operator no longer has; {advice}"
            )
        if new := set(attributes) - asked - optional:
            lacks = f"does not know {', '.join(sorted(new))}"
            raise BundleError(f"{self.bundle.folder}: its function {operator.name} {lacks}; {advice}")

    def _one_node_model(
        self,
        operator: Operator,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        attributes: dict[str, float],
    ) -> bytes:
        from onnx import helper

        # All dimensions are free: one session serves all sizes.
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


def _chunk_by_chunk(
    provider: FunctionProvider,
    kv: KV | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chunk_size: int,
    o: Tensor,
    m: Tensor,
    l: Tensor,
    colsum: Tensor | None = None,
) -> None:
    """The body computes the whole score matrix, although chunks do not see each other."""
    values = np.ascontiguousarray(k[:, :, : provider.shape.value_size]) if v is k else v
    rows = {"q": q, "k": k, "v": values, "o": o, "m": m, "l": l, "colsum": colsum}
    for start in range(0, len(q), chunk_size):
        stop = min(start + chunk_size, len(q))
        cut = {name: array[start:stop] for name, array in rows.items() if array is not None}
        provider.run_body(CHUNKED_INTRA_ATTENTION, None, {**cut, "chunk_size": chunk_size})


def _tile_by_tile(
    provider: FunctionProvider,
    kv: KV,
    q: Tensor,
    candidates: Tensor,
    past: Tensor,
    first: Tensor,
    tile: int,
    memory_next: Tensor,
    **attributes: int,
) -> None:
    """The body copies all keys that a tile looks at."""
    k_cache, v_cache = contiguous_rows(kv, provider.shape.dtype, provider.shape.value_size)
    for i, begin in enumerate(first):
        cut = {"q": q[i * tile : (i + 1) * tile]}
        for name, array in (("candidates", candidates), ("past", past), ("first", first)):
            cut[name] = array[i : i + 1]
        end = int(begin) + len(cut["q"])
        keys = KV(k_cache[:end], v_cache[:end], end)
        chosen = memory_next[i : i + 1]
        provider.run_body(QUERY_SELECT, keys, {**cut, "memory_next": chosen, "tile": tile, **attributes})


def _blocks_tile_by_tile(
    provider: FunctionProvider,
    kv: KV,
    q: Tensor,
    past: Tensor,
    tile: int,
    candidates: Tensor,
    **attributes: int,
) -> None:
    """The body scores the blocks of the longest past for all tiles."""
    k_cache, v_cache = contiguous_rows(kv, provider.shape.dtype, provider.shape.value_size)
    for i, end in enumerate(past):
        cut = {
            "q": q[i * tile : (i + 1) * tile],
            "past": past[i : i + 1],
            "candidates": candidates[i : i + 1],
        }
        keys = KV(k_cache[:end], v_cache[:end], int(end))
        provider.run_body(BLOCK_SELECT, keys, {**cut, "tile": tile, **attributes})


def _gather_and_score(provider: FunctionProvider, kv: KV, memory: Tensor, **arguments: Tensor) -> None:
    """The body takes gathered keys of the memory set."""
    shape = provider.shape
    k_mem = np.empty((*memory.shape, shape.head_size), shape.dtype)
    if memory.size:
        provider.run_body(MEMORY_GATHER, kv, {"memory": memory, "k_mem": k_mem})
    provider.run_body(CANDIDATE_SCORE, None, {**arguments, "k_mem": k_mem})


def _fuse_in_place(
    provider: FunctionProvider,
    kv: KV,
    q: Tensor,
    memory: Tensor,
    o_intra: Tensor,
    m_intra: Tensor,
    l_intra: Tensor,
    colsum: Tensor | None = None,
) -> None:
    """The body's three operators: in place m and l are fused too, which the body does not output."""
    if not memory.size:
        return
    shape, spanned = provider.shape, max(provider.shape.kv_heads // len(memory), 1)
    sets = np.repeat(memory, spanned, axis=0)  # key/value heads of a score head read the same memory
    gathered = {
        name: np.empty((*sets.shape, size), shape.dtype)
        for name, size in (("k_mem", shape.head_size), ("v_mem", shape.value_size))
    }
    provider.run_body(MEMORY_GATHER, kv, {"memory": sets, **gathered})
    own = PartialSoftmax(*map(np.empty_like, (o_intra, m_intra, l_intra)))
    sums = np.empty(sets.shape, np.float32)
    provider.run_body(MEMORY_ATTENTION, None, {"q": q, **gathered, **own.out, "colsum": sums})
    states = {"o_a": o_intra, "m_a": m_intra, "l_a": l_intra, "o_b": own.o, "m_b": own.m, "l_b": own.l}
    provider.run_body(ONLINE_SOFTMAX_FUSION, None, {**states, "o": o_intra, "m": m_intra, "l": l_intra})
    if colsum is not None:
        colsum[:] = sums.reshape(len(memory), spanned, -1).sum(axis=1)


def _each_tile(
    provider: FunctionProvider,
    kv: KV,
    q: Tensor,
    memory: Tensor,
    tile: int,
    o_intra: Tensor,
    m_intra: Tensor,
    l_intra: Tensor,
) -> None:
    each_tile(provider, q, kv, memory, tile, PartialSoftmax(o_intra, m_intra, l_intra))


def _partial_attention(
    provider: FunctionProvider, kv: KV, q: Tensor, o: Tensor, m: Tensor, l: Tensor
) -> None:
    """In NumPy: CachedAttention's body tells no state."""
    shape, n, length = provider.shape, len(q), int(kv.length)
    keys, values = (
        np.repeat(rows[:length].astype(np.float32), shape.query_heads // shape.kv_heads, axis=1)
        for rows in contiguous_rows(kv, shape.dtype, shape.value_size)
    )
    back = np.arange(length - n, length)[:, None] - np.arange(length)  # from a row to a key
    seen = (back >= 0) & (back < (shape.window or length))
    step = max(1, SCORE_BYTES // (4 * shape.query_heads * length))
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        scores = np.einsum("nhd,khd->nhk", q[rows].astype(np.float32), keys) * np.float32(shape.scale)
        if shape.softcap:
            scores = np.tanh(scores / shape.softcap) * shape.softcap
        scores = np.where(seen[rows, None], scores, -np.inf).astype(np.float32)
        m[rows] = scores.max(axis=-1)
        weights = np.exp(scores - m[rows, :, None])
        l[rows] = weights.sum(axis=-1)
        o[rows] = np.einsum("nhk,khd->nhd", weights / l[rows, :, None], values)


def _prompt_attention(provider: FunctionProvider, kv: KV, q: Tensor, o: Tensor, **state: Tensor) -> None:
    if state:
        _partial_attention(provider, kv, q, o, **state)
    else:
        provider.run(CACHED_ATTENTION, kv, q=q, o=o)


_ADAPTED: dict[Operator, Any] = {
    PROMPT_ATTENTION: _prompt_attention,
    PARTIAL_ATTENTION: _partial_attention,
    CHUNKED_INTRA_ATTENTION: _chunk_by_chunk,
    MEMORY_FUSED_ATTENTION: _fuse_in_place,
    BLOCK_SELECT: _blocks_tile_by_tile,
    QUERY_SELECT: _tile_by_tile,
    CACHED_CANDIDATE_SCORE: _gather_and_score,
    TILED_MEMORY_ATTENTION: _each_tile,
}
