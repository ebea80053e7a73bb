"""What dense graphs hold, found in them: norms, rotations and gates, each a handful of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from h2o_runtime.errors import BundleError

# A node's operator and its inputs; a string stands for any tensor, and for the same one wherever it stands again.
Pattern: TypeAlias = "str | tuple[str | Pattern, ...]"

SQUARE: Pattern = ("ReduceMean", ("Pow", "x", "two"), "axes")
NORM: Pattern = ("Mul", "weight", ("Mul", "x", ("Reciprocal", ("Sqrt", ("Add", SQUARE, "epsilon")))))
GATE: Pattern = ("Mul", ("Mul", "gate", ("Sigmoid", "gate")), "up")
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


@dataclass(frozen=True)
class Norm:
    """x [n, K] / √(mean of a row's x² + epsilon) · weight [K], an initializer."""

    x: str
    weight: str
    epsilon: float


@dataclass(frozen=True)
class Rotation:
    """x, n · heads · size numbers in this order, turned by cos and sin [n, size / 2] → out [n, heads, size]."""

    x: str
    cos: str
    sin: str
    out: str
    heads: int
    size: int


class GraphView:
    """A GraphProto, with who makes and reads its tensors. It does not see what changes later."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.makers: dict[str, Any] = {name: node for node in graph.node for name in node.output}
        self.constants: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
        self.results: dict[str, Any] = {value.name: value for value in graph.output}
        self._given: dict[str, Any] = {value.name: value for value in graph.input}
        self._readers: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)

    def readers(self, tensor: str) -> Sequence[Any]:
        return self._readers.get(tensor, ())

    def maker(self, tensor: str, op_type: str) -> Any | None:
        """The node that makes a tensor, where it is of this operator."""
        node = self.makers.get(tensor)
        return node if node is not None and node.op_type == op_type else None

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Of an input or a result, 0 where it is not fixed; () of all others."""
        value = self._given.get(tensor) or self.results.get(tensor)
        return () if value is None else tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)

    def find(self, pattern: Pattern, tensor: str) -> dict[str, str] | None:
        """The tensors that the strings of `pattern` stand for, if `tensor` is made as it says."""
        found: dict[str, str] = {}
        return found if self._matches(pattern, tensor, found) else None

    def values(self, found: Mapping[str, str], *names: str) -> list[float] | None:
        """The numbers of constants with one element each, or None."""
        from onnx import numpy_helper

        tensors = [self.constants.get(found[name]) for name in names]
        arrays = [numpy_helper.to_array(t) for t in tensors if t is not None and not t.external_data]
        if len(arrays) < len(names) or any(array.size != 1 for array in arrays):
            return None
        return [array.item() for array in arrays]

    def norm(self, tensor: str) -> Norm | None:
        """Of the last dimension."""
        found = self.find(NORM, tensor)
        numbers = found and self.values(found, "two", "axes", "epsilon")
        if not found or not numbers or numbers[:2] not in ([2, -1], [2, 1]):
            return None
        weight = self.constants.get(found["weight"])
        return Norm(found["x"], found["weight"], numbers[2]) if weight and len(weight.dims) == 1 else None

    def rotations(self) -> Iterator[Rotation]:
        """Those whose result the graph gives out, which tells their shape."""
        from onnx import TensorProto

        for name, value in self.results.items():
            found = self.find(ROTATION, name)
            if value.type.tensor_type.elem_type != TensorProto.FLOAT or found is None:
                continue
            _, heads, size = self.shape(name)
            numbers = self.values(found, "zero", "half", "last", "step", "middle", "end")
            if numbers and numbers[:5] == [0, size // 2, 2, 1, 1] and numbers[5] >= size and size % 2 == 0:
                reshape = self.maker(found["x"], "Reshape")
                x = found["x"] if reshape is None else reshape.input[0]
                yield Rotation(x, found["cos"], found["sin"], name, heads, size)

    def _matches(self, pattern: Pattern, name: str, found: dict[str, str]) -> bool:
        if isinstance(pattern, str):
            return found.setdefault(pattern, name) == name
        node = self.maker(name, str(pattern[0]))
        return (
            node is not None
            and len(node.input) == len(pattern) - 1
            and all(
                self._matches(part, given, found) for part, given in zip(pattern[1:], node.input, strict=True)
            )
        )


def keep_needed(graph: Any) -> None:
    """Drop nodes, and then constants, that no result needs; put the others where all that they read was made."""
    needed = {value.name for value in graph.output}
    makers = {name: node for node in graph.node for name in node.output}
    waiting = list(needed)
    while waiting:
        node = makers.get(waiting.pop())
        fresh = [] if node is None else [name for name in node.input if name not in needed]
        needed.update(fresh)
        waiting.extend(fresh)
    pending = [node for node in graph.node if needed.intersection(node.output)]
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    there = {"", *(tensor.name for tensor in constants), *(value.name for value in graph.input)}
    nodes: list[Any] = []
    while pending:
        late = []
        for node in pending:
            if there.issuperset(node.input):
                nodes.append(node)
                there.update(node.output)
            else:
                late.append(node)
        if len(late) == len(pending):
            raise BundleError(f"graph {graph.name}: nothing makes what {late[0].name} reads")
        pending = late
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(constants)
