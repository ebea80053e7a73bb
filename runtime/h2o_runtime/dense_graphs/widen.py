"""Dense graphs of float16 in float32: our own products, and what is inside them, compute in float32.

Matrices stay float16 in their files, behind a Cast: products of our own read them when they are packed. Rows that
are looked up become float32 behind the look-up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from h2o_runtime.dense_graphs.graph_view import GraphView, keep_needed, make_node
from h2o_runtime.dense_graphs.matrices import floats as values_of

PRODUCTS = ("Gemm", "MatMul")
TYPES = ("to", "dtype", "output_dtype")  # attributes that name a type


def widen(model: Any, path: Path) -> Any:
    """A ModelProto that was loaded from `path`, changed: float32 in place of float16, in inputs and results too.

    Numbers that are no matrices are inside the model.
    """
    from onnx import TensorProto, numpy_helper

    graph = model.graph
    halves = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT16}
    view = GraphView(graph)
    looked_up = {name for name in halves if all(_looks_up(node, name) for node in view.readers(name))}
    matrices = {name for name in halves if all(_multiplies(node, name) for node in view.readers(name))}
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16)
    values = (*graph.input, *graph.output, *graph.value_info)
    floating = {value.name for value in values if value.type.tensor_type.elem_type in floats} - halves.keys()
    for value in (*graph.input, *graph.output):
        if value.name in floating:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    nodes = [_cast(name, f"{name}/float32") for name in sorted(matrices)]
    for node in graph.node:
        _widen_attributes(node)
        nodes.append(node)
        if node.op_type == "Gather" and node.input[0] in looked_up:
            out, node.output[0] = node.output[0], f"{node.output[0]}/float16"
            nodes.append(_cast(node.output[0], out))
        elif node.op_type in PRODUCTS:
            node.input[:] = [f"{name}/float32" if name in matrices else name for name in node.input]
    del graph.node[:]
    graph.node.extend(nodes)
    for name in halves.keys() - looked_up - matrices:
        array = values_of(halves[name], path.parent).astype(np.float32)
        halves[name].CopyFrom(numpy_helper.from_array(array, name))
    _drop_needless_casts(graph, floating)
    keep_needed(graph)
    return model


def _looks_up(node: Any, name: str) -> bool:
    return bool(node.op_type == "Gather" and node.input[0] == name)


def _multiplies(node: Any, name: str) -> bool:
    return bool(node.op_type in PRODUCTS and node.input[1] == name)


def _cast(source: str, out: str) -> Any:
    from onnx import TensorProto

    return make_node("Cast", [source], out, name=f"{out}/Cast", to=TensorProto.FLOAT)


def _widen_attributes(node: Any) -> None:
    from onnx import TensorProto, numpy_helper

    for attribute in node.attribute:
        if attribute.name in TYPES and attribute.i == TensorProto.FLOAT16:
            attribute.i = TensorProto.FLOAT
        elif attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT16:
            attribute.t.CopyFrom(
                numpy_helper.from_array(
                    numpy_helper.to_array(attribute.t).astype(np.float32), attribute.t.name
                )
            )


def _drop_needless_casts(graph: Any, floating: set[str]) -> None:
    """Casts to float32 of what is `floating`, which is float32 now: patterns of nodes are found without them, and
    what makes a result too.
    """
    from onnx import TensorProto, helper

    view, source, nodes = GraphView(graph), dict[str, str](), []
    for node in graph.node:
        node.input[:] = [source.get(name, name) for name in node.input]
        given, output = node.input[0] if node.input else "", node.output[0]
        if (
            node.op_type != "Cast"
            or given not in floating
            or helper.get_node_attr_value(node, "to") != TensorProto.FLOAT
        ):
            nodes.append(node)
        elif output not in view.results:
            source[output] = given
        elif len(view.readers(given)) == 1 and given in view.makers:
            maker = view.makers[given]
            maker.output[:] = [output if name == given else name for name in maker.output]
        else:
            nodes.append(node)
    graph.CopyFrom(helper.make_graph(nodes, graph.name, graph.input, graph.output, graph.initializer))
