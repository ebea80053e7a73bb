"""What ONNX Runtime's CPU does in one node where a portable graph has ten: graphs rewritten as they are loaded.

For one token of a small model half of a graph's time goes into calling its nodes. Norms are put so that ONNX
Runtime's own optimizer knows them, rotations become its RotaryEmbedding. What has another shape stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

MICROSOFT = "com.microsoft"

# A node's operator and its inputs; a string stands for any tensor, and for the same one wherever it stands again.
Pattern: TypeAlias = "str | tuple[str | Pattern, ...]"
Makers: TypeAlias = Mapping[str, Any]  # tensor → the node that makes it

NORM: Pattern = ("Mul", "x", ("Reciprocal", ("Sqrt", "square")))
# The halves a, b of [n, H, d], turned by cos, sin [n, d / 2].
COS: Pattern = ("Unsqueeze", "cos", "middle")
SIN: Pattern = ("Unsqueeze", "sin", "middle")
A: Pattern = ("Slice", "x", "zero", "half", "last", "step")
B: Pattern = ("Slice", "x", "half", "end", "last", "step")
ROTATION: Pattern = (
    "Concat",
    ("Sub", ("Mul", A, COS), ("Mul", B, SIN)),
    ("Add", ("Mul", B, COS), ("Mul", A, SIN)),
)


def fuse(model: Any) -> None:
    """Change a ModelProto in place."""
    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output}
    _divide(graph, makers)
    rotations = {rotation.out: rotation for rotation in _rotations(graph, makers)}
    if rotations:
        _rotate(model, rotations)
    _drop_unused(graph)


def _matches(pattern: Pattern, name: str, makers: Makers, found: dict[str, str]) -> bool:
    """Whether tensor `name` is made as `pattern` says; `found` is given the tensors that its strings stand for."""
    if isinstance(pattern, str):
        return found.setdefault(pattern, name) == name
    maker = makers.get(name)
    return (
        maker is not None
        and maker.op_type == pattern[0]
        and len(maker.input) == len(pattern) - 1
        and all(
            _matches(part, given, makers, found) for part, given in zip(pattern[1:], maker.input, strict=True)
        )
    )


def _divide(graph: Any, makers: Makers) -> None:
    """x · (1 / √y) → x / √y, as ONNX Runtime looks for it in a norm."""
    for node in graph.node:
        if _matches(NORM, node.output[0], makers, {}):
            node.op_type = "Div"
            node.input[1] = makers[node.input[1]].input[0]


@dataclass(frozen=True)
class _Rotation:
    """x, n · heads · size numbers in this order, turned by cos and sin [n, size / 2] → out [n, heads, size]."""

    x: str
    cos: str
    sin: str
    out: str
    heads: int
    size: int


def _rotations(graph: Any, makers: Makers) -> Iterator[_Rotation]:
    """Those whose result the graph gives out, which tells their shape."""
    from onnx import TensorProto, numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    for value in graph.output:
        if value.type.tensor_type.elem_type != TensorProto.FLOAT:
            continue
        found: dict[str, str] = {}
        if not _matches(ROTATION, value.name, makers, found):
            continue
        _, heads, size = (dim.dim_value for dim in value.type.tensor_type.shape.dim)
        plain = {"zero": 0, "half": size // 2, "last": 2, "step": 1, "middle": 1}
        if any(name not in constants for name in (found[key] for key in (*plain, "end"))):
            continue
        given = {name: numpy_helper.to_array(constants[found[name]]).item() for name in (*plain, "end")}
        if given.pop("end") >= size == 2 * plain["half"] and given == plain:
            x = makers.get(found["x"])
            x = x.input[0] if x is not None and x.op_type == "Reshape" else found["x"]
            yield _Rotation(x, found["cos"], found["sin"], value.name, heads, size)


def _rotate(model: Any, rotations: Mapping[str, _Rotation]) -> None:
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


def _rotated(rotation: _Rotation, graph: Any) -> list[Any]:
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


def _drop_unused(graph: Any) -> None:
    """Nodes, and then constants, that nothing reads any more."""
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.initializer[:]
    graph.initializer.extend(constants)
