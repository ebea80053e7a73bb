"""What ONNX Runtime's CPU does in one node where a portable graph has ten: graphs rewritten as they are loaded.

For one token of a small model half of a graph's time goes into calling its nodes. Norms are put so that ONNX
Runtime's own optimizer knows them, rotations become its RotaryEmbedding. What has another shape stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from h2o_runtime.ort.patterns import GraphView, Pattern, Rotation, keep_needed

MICROSOFT = "com.microsoft"
ROOT: Pattern = ("Mul", "x", ("Reciprocal", ("Sqrt", "square")))


def fuse(model: Any) -> None:
    """Change a ModelProto in place."""
    view = GraphView(model.graph)
    _divide(view)
    rotations = {rotation.out: rotation for rotation in view.rotations()}
    if rotations:
        _rotate(model, rotations)
    keep_needed(model.graph)


def _divide(view: GraphView) -> None:
    """x · (1 / √y) → x / √y, as ONNX Runtime looks for it in a norm."""
    for node in view.graph.node:
        if view.find(ROOT, node.output[0]) is not None:
            node.op_type = "Div"
            node.input[1] = view.makers[node.input[1]].input[0]


def _rotate(model: Any, rotations: Mapping[str, Rotation]) -> None:
    """The nodes that make the results give way to RotaryEmbedding; those before them are then unused."""
    from onnx import helper

    graph = model.graph
    nodes = []
    for node in graph.node:
        nodes.extend(_rotated(rotations[node.output[0]], graph) if node.output[0] in rotations else [node])
    del graph.node[:]
    graph.node.extend(nodes)
    if all(opset.domain != MICROSOFT for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))


def _rotated(rotation: Rotation, graph: Any) -> list[Any]:
    """As a sequence of n rows that starts at row 0 of the tables, for the tables hold these rows alone."""
    from onnx import helper, numpy_helper

    def constant(name: str, values: list[int]) -> str:
        name = f"{rotation.out}/{name}"
        graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    flat = constant("flat", [1, -1, rotation.heads * rotation.size])
    start = constant("start", [0])
    shape = constant("shape", [-1, rotation.heads, rotation.size])
    x, turned = f"{rotation.out}/x", f"{rotation.out}/turned"
    return [
        helper.make_node("Reshape", [rotation.x, flat], [x], name=x),
        helper.make_node(
            "RotaryEmbedding", [x, start, rotation.cos, rotation.sin], [turned], name=turned, domain=MICROSOFT
        ),
        helper.make_node("Reshape", [turned, shape], [rotation.out], name=rotation.out),
    ]
