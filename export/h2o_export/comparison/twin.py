"""The float64 twin of a graph: the same nodes on the same weights, computed in double precision.

RoPE angles stay in float32 in the twin too. Their rounding is part of the model: it was trained with it, and
transformers computes them in float32 whatever the model's dtype. Integer weights become DequantizeLinear's
floats, which are then widened.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, inliner, numpy_helper
from onnx.external_data_helper import load_external_data_for_model

from h2o_runtime.errors import BundleError

_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16)


def float64_twin(path: Path) -> ModelProto:
    """Load a graph with its weights and widen it. Inputs keep their dtypes; float outputs become float64."""
    try:
        model = onnx.load(path, load_external_data=False)
        _check_links(path.parent, model)
        load_external_data_for_model(model, str(path.parent))
    except BundleError:
        raise
    except Exception as error:  # protobuf's own, and those of onnx about weights beside the graph
        raise BundleError(f"{path}: not a valid ONNX graph ({error}); export the checkpoint again") from error
    if model.functions:
        model = inliner.inline_local_functions(model)
    graph = model.graph
    del graph.value_info[:]
    # Indices of nodes that stay float32.
    in_float32 = _nodes_up_to(graph, ("Cos", "Sin")) | _nodes_up_to(graph, ("DequantizeLinear",))
    narrow = {name for index in in_float32 for name in graph.node[index].input}
    for tensor in graph.initializer:
        if tensor.data_type in _NARROW and tensor.name not in narrow:
            wide = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    renamed: dict[str, str] = {}  # float value → its float64 copy
    nodes: list[NodeProto] = []
    for value in graph.input:
        if value.type.tensor_type.elem_type in _NARROW:
            nodes.append(_widen(value.name, renamed))
    for index, node in enumerate(graph.node):
        if index in in_float32:
            nodes.append(node)
            if node.op_type in ("Cos", "Sin", "DequantizeLinear"):
                nodes.append(_widen(node.output[0], renamed))
            continue
        for position, name in enumerate(node.input):
            node.input[position] = renamed.get(name, name)
        _widen_attributes(node)
        nodes.extend(_softplus(node) if node.op_type == "Softplus" else [node])
    del graph.node[:]
    graph.node.extend(nodes)
    for value in graph.output:
        kind = value.type.tensor_type
        if kind.elem_type in _NARROW and value.name not in renamed:  # values in float32 stay unchanged
            kind.elem_type = TensorProto.DOUBLE
    return model


def _check_links(folder: Path, model: ModelProto) -> None:
    """Raises BundleError for a file of weights that onnx refuses because it has several hard links."""
    places = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for file in (folder / place for place in sorted(places)):
        if file.stat().st_nlink > 1:
            raise BundleError(
                f"{file} has several hard links, and onnx does not read such files: copy the bundle with cp -r, "
                "and compare the copy"
            )


def _nodes_up_to(graph: onnx.GraphProto, ends: tuple[str, ...]) -> set[int]:
    """Indices of the nodes of these kinds and of everything before them."""
    producers = {name: index for index, node in enumerate(graph.node) for name in node.output}
    pending = [index for index, node in enumerate(graph.node) if node.op_type in ends]
    found: set[int] = set()
    while pending:
        index = pending.pop()
        if index not in found:
            found.add(index)
            pending += [producers[name] for name in graph.node[index].input if name in producers]
    return found


def _widen(name: str, renamed: dict[str, str]) -> NodeProto:
    renamed[name] = f"{name}:float64"
    return helper.make_node("Cast", [name], [renamed[name]], to=TensorProto.DOUBLE)


def _softplus(node: NodeProto) -> list[NodeProto]:
    """log(1 + eˣ), which ONNX Runtime has in float32 only, as max(x, 0) + log(1 + e^-|x|)."""
    (x,), (out,) = node.input, node.output
    parts = [
        f"{out}:{part}" for part in ("absolute", "negated", "exponential", "one", "sum", "log", "positive")
    ]
    absolute, negated, exponential, one, total, log, positive = parts
    return [
        helper.make_node("Abs", [x], [absolute]),
        helper.make_node("Neg", [absolute], [negated]),
        helper.make_node("Exp", [negated], [exponential]),
        helper.make_node("Constant", [], [one], value=numpy_helper.from_array(np.array(1.0))),
        helper.make_node("Add", [exponential, one], [total]),
        helper.make_node("Log", [total], [log]),
        helper.make_node("Relu", [x], [positive]),
        helper.make_node("Add", [positive, log], [out]),
    ]


def _widen_attributes(node: NodeProto) -> None:
    """Casts to float and float constants become double."""
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i in _NARROW:
            attribute.i = TensorProto.DOUBLE
        elif node.op_type == "Constant" and attribute.name == "value_float":
            constant = numpy_helper.from_array(np.array(attribute.f, np.float64))
            attribute.CopyFrom(helper.make_attribute("value", constant))
        elif attribute.name == "value" and attribute.t.data_type in _NARROW:  # Constant, ConstantOfShape
            wide = numpy_helper.to_array(attribute.t).astype(np.float64)
            attribute.t.CopyFrom(numpy_helper.from_array(wide))


def save_twin(path: Path, folder: Path) -> Path:
    """Write the twin of `path` into `folder`, with weights in a separate file: a large head exceeds
    protobuf's 2 GiB.
    """
    target = folder / path.name
    onnx.save(
        float64_twin(path),
        target,
        save_as_external_data=True,
        location=f"{path.stem}.bin",
        size_threshold=1024,
    )
    return target
