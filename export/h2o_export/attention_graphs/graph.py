"""Putting an attention graph together.

Each file carries the function bodies of the whole domain, so any of them can be opened by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx
from onnx import NodeProto, TensorProto, helper

from h2o_export.operators import DOMAIN, VERSION, function_protos
from h2o_export.operators.opset import OPSET
from h2o_runtime.attention import AttentionShape
from h2o_runtime.bundles.manifest import FreeSize, FreeSizes, GraphSpec, TensorSpec

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


def make_graph(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    nodes: Sequence[NodeProto],
    free: FreeSizes,
) -> AttentionGraph:
    """The graph as a model with the function bodies of its operators, and as the manifest has it."""
    graph = helper.make_graph(nodes, name, list(map(_value_info, inputs)), list(map(_value_info, outputs)))
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
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        free=free,
    )
    return AttentionGraph(spec, model)


def queries(name: str, shape: AttentionShape) -> TensorSpec:
    """Queries: [n, Hq, d]."""
    return _heads(name, "n", shape.query_heads, shape.head_size, shape)


def attended(name: str, shape: AttentionShape) -> TensorSpec:
    """What queries get: [n, Hq, dv]."""
    return _heads(name, "n", shape.query_heads, shape.value_size, shape)


def keys_values(names: Iterable[str], rows: str, shape: AttentionShape) -> tuple[TensorSpec, ...]:
    """Keys and values of new tokens (`rows` n) or a cache (`rows` cap): [rows, Hkv, d], and dv of what begins
    with v."""
    return tuple(_heads(name, rows, shape.kv_heads, row_size(name, shape), shape) for name in names)


def row_size(name: str, shape: AttentionShape) -> int:
    """Elements of a head in the rows of an operator's tensor: values and outputs have their own."""
    return shape.value_size if name.startswith(("v", "o")) else shape.head_size


def operator(name: str, inputs: Iterable[str], outputs: Iterable[str], **attributes: float) -> NodeProto:
    """A node of domain h2o."""
    return helper.make_node(name, list(inputs), list(outputs), name=name, domain=DOMAIN, **attributes)  # type: ignore[arg-type]


def standard(name: str, inputs: Iterable[str], output: str, **attributes: object) -> NodeProto:
    """A node of ONNX itself, named after its output."""
    return helper.make_node(name, list(inputs), [output], name=output, **attributes)  # type: ignore[arg-type]


def constant(name: str, values: list[int]) -> NodeProto:
    """int64 [k]."""
    tensor = helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
    return helper.make_node("Constant", [], [name], name=name, value=tensor)


def _heads(name: str, rows: str, heads: int, size: int, shape: AttentionShape) -> TensorSpec:
    return TensorSpec(name=name, dtype=shape.dtype.name, shape=(rows, heads, size))  # type: ignore[arg-type]


def _value_info(spec: TensorSpec) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(spec.name, _ELEMENT[spec.dtype], list(spec.shape))
