"""Fuses functions of dense graphs for ONNX Runtime's CPU, as graphs are loaded.

For one token of a small model, calling a graph's nodes takes half the time. In float32, norms and rotations
become single ONNX Runtime nodes. All other functions are replaced by their bodies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from h2o_runtime.dense_graphs.graph_view import GraphView, Rotation, import_domain, keep_needed, make_node
from h2o_runtime.operators import DOMAIN

MICROSOFT = "com.microsoft"


def names_functions(model: Any) -> bool:
    """Whether a ModelProto names its norms, gates and rotations. Bundles of earlier versions do not."""
    return any(node.domain == DOMAIN for node in model.graph.node)


def fuse(model: Any) -> Any:
    """A ModelProto → one without functions of domain h2o."""
    from onnx import inliner

    graph = model.graph
    view = GraphView(graph)
    rotations = {rotation.out: rotation for rotation in view.rotations()}
    nodes: list[Any] = []
    for node in graph.node:
        out = node.output[0]
        if out in rotations:
            nodes.extend(_rotated(rotations[out], graph))
        elif (norm := view.norm(out)) is not None and view.is_float32(norm.weight):
            given, operator = [norm.x, norm.weight], "SimplifiedLayerNormalization"
            nodes.append(make_node(operator, given, out, axis=-1, epsilon=norm.epsilon))
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    if rotations:
        import_domain(model, MICROSOFT, 1)
    keep_needed(graph)
    return inliner.inline_local_functions(model) if model.functions else model


def _rotated(rotation: Rotation, graph: Any) -> list[Any]:
    """As a sequence of n rows that starts at row 0 of the tables, because the tables hold these rows only."""
    from onnx import numpy_helper

    def constant(name: str, values: list[int]) -> str:
        name = f"{rotation.out}/{name}"
        graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    flat = constant("flat", [1, -1, rotation.heads * rotation.size])
    start = constant("start", [0])
    shape = constant("shape", [-1, rotation.heads, rotation.size])
    x, turned = f"{rotation.out}/x", f"{rotation.out}/turned"
    return [
        make_node("Reshape", [rotation.x, flat], x),
        make_node("RotaryEmbedding", [x, start, rotation.cos, rotation.sin], turned, domain=MICROSOFT),
        make_node("Reshape", [turned, shape], rotation.out),
    ]
