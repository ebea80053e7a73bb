"""A decode step as one graph: all rewritten dense graphs of a model, with StepAttention between them.

The rows may belong to different sequences: dense graphs process them together, attention reads each row's own
cache. A row's result does not depend on the others: every node works row by row, and native products sum each
row in a fixed order.

A step layer by layer is about sixty calls, and threads sleep between them. In one graph ONNX Runtime's
threads go from product to product, and attention runs on them too. Its weights are shared with the other
sessions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from h2o_runtime.backend import StepTensors
from h2o_runtime.dense_graphs.graph_view import make_node
from h2o_runtime.dense_graphs.packed_nodes import DOMAIN
from h2o_runtime.devices import Tensor
from h2o_runtime.layer_spec import AttentionShape

ANGLES = ("cos", "sin")  # of every table of angles: outputs of the first graph, inputs of all others


@dataclass(frozen=True)
class RewrittenGraph:
    """One dense graph as its own session has it: a ModelProto, and weights that it only names.

    native  whether its products are of our own
    """

    model: Any
    weights: Mapping[str, NDArray[Any]]
    native: bool


def whole_step(graphs: Sequence[RewrittenGraph], tensors: StepTensors, threads: int) -> RewrittenGraph:
    """Joins all dense graphs in the model's order: its layers, then its head."""
    from onnx import ModelProto, helper

    nodes: list[Any] = []
    initializers: list[Any] = []
    weights: dict[str, NDArray[Any]] = {}
    opsets: dict[str, Any] = {}
    made: dict[str, str] = {"tokens": "tokens", "positions": "positions"}  # by the name in the next graph
    for i, rewritten in enumerate(graphs):
        graph = rewritten.model.graph
        names = _names(graph, i, made, last=i == len(graphs) - 1)
        nodes.extend(_renamed(graph, names))
        for tensor in graph.initializer:
            copy = type(tensor)()
            copy.CopyFrom(tensor)
            copy.name = names[tensor.name]
            initializers.append(copy)
        weights |= {names[name]: array for name, array in rewritten.weights.items()}
        opsets |= {opset.domain: opset for opset in rewritten.model.opset_import}
        results = {value.name: names[value.name] for value in graph.output}
        if i < len(graphs) - 1:
            made |= {"residual": results["residual_out"], "attention": f"{i}/attended"}
            made |= {name: result for name, result in results.items() if name.startswith(ANGLES)}
            made["gate"] = results.get("gate_out", "")
            made.setdefault("embedded", results["residual_out"])  # the first one is what begins the stream
            nodes.append(_attention(i, results, tensors.shapes[i], threads))
    result = ModelProto(ir_version=graphs[0].model.ir_version)
    result.opset_import.extend(opsets.values())
    given = [_value(name, array) for name, array in tensors.inputs(1).items()]
    logits = _value("logits", tensors.logits)
    result.graph.CopyFrom(helper.make_graph(nodes, "step", given, [logits], initializers))
    return RewrittenGraph(result, weights, native=True)


def _names(graph: Any, i: int, made: Mapping[str, str], last: bool) -> dict[str, str]:
    """The names of graph i's tensors in the joined graph. Tensors that already exist become its inputs."""
    names = {"": ""} | {value.name: made[value.name] for value in graph.input}
    if last:
        names |= {value.name: value.name for value in graph.output}
    for name in _tensors(graph):
        names.setdefault(name, f"{i}/dense/{name}")
    return names


def _tensors(graph: Any) -> Iterator[str]:
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output


def _renamed(graph: Any, names: Mapping[str, str]) -> Iterator[Any]:
    for node in graph.node:
        copy = type(node)()
        copy.CopyFrom(node)
        del copy.input[:], copy.output[:]
        copy.input.extend(names[name] for name in node.input)
        copy.output.extend(names[name] for name in node.output)
        copy.name = copy.output[0]
        multiply_in_integers(copy)
        yield copy


def multiply_in_integers(node: Any) -> None:
    """For few rows bfloat16 would take longer to make of a node's integers than to multiply."""
    for attribute in node.attribute:
        if attribute.name == "parts" and attribute.i == 0:
            attribute.i = 1


def _attention(layer: int, results: Mapping[str, str], shape: AttentionShape, threads: int) -> Any:
    return make_node(
        "StepAttention",
        [*(results[name] for name in "qkv"), "lengths", "caches"],
        f"{layer}/attended",
        domain=DOMAIN,
        layer=layer,
        scale=shape.scale,
        window=shape.window,
        softcap=shape.softcap,
        threads=threads,
    )


def _value(name: str, array: Tensor) -> Any:
    """For any number of rows."""
    from onnx import helper

    dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, dtype, ["rows", *array.shape[1:]])
