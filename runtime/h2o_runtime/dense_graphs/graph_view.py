"""A dense graph's connections, and the meaning of its functions of domain h2o."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from h2o_runtime.errors import BundleError
from h2o_runtime.operators import DOMAIN

# Functions that the exporter names in dense graphs; the file also has their bodies of standard operators.
RMS_NORM, ROTATION = "RMSNorm", "Rotation"
GATES = ("SwiGLU", "GeGLU", "ClampedSwiGLU")  # in the numbering of h2o_gate_function in h2o/products.h


@dataclass(frozen=True)
class Norm:
    """x [..., K] / √(mean of a row's x² + epsilon) · weight [K], an initializer."""

    x: str
    weight: str
    epsilon: float


@dataclass(frozen=True)
class GateFunction:
    """One of GATES, with those attributes that it has."""

    name: str
    attributes: tuple[tuple[str, float], ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """Attributes of a node with it."""
        return {"gate": GATES.index(self.name), **dict(self.attributes)}


SWIGLU = GateFunction(GATES[0])


@dataclass(frozen=True)
class Gate:
    """A function of x and `up`."""

    function: GateFunction
    x: str
    up: str


@dataclass(frozen=True)
class Rotation:
    """x, n · heads · size elements in this order, rotated by cos and sin [n, size / 2] → out [n, heads,
    size].
    """

    x: str
    cos: str
    sin: str
    out: str
    heads: int
    size: int


@dataclass(frozen=True)
class Slice:
    """Numbers start ... stop - 1 of x along one axis."""

    x: str
    start: int
    stop: int
    axis: int


class GraphView:
    """A GraphProto with the producers and consumers of its tensors. It does not see later changes."""

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

    def maker(self, tensor: str, op_type: str, domain: str = "") -> Any | None:
        """The node that produces a tensor, if it has this operator."""
        node = self.makers.get(tensor)
        return node if node is not None and (node.domain, node.op_type) == (domain, op_type) else None

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Of an input or a result, 0 for free sizes; () for all other tensors."""
        value = self._given.get(tensor) or self.results.get(tensor)
        return () if value is None else tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)

    def is_float32(self, constant: str) -> bool:
        from onnx import TensorProto

        return bool(self.constants[constant].data_type == TensorProto.FLOAT)

    def norm(self, tensor: str) -> Norm | None:
        """The norm that produces `tensor`, if there is one with an initializer as weight."""
        node = self.maker(tensor, RMS_NORM, DOMAIN)
        if node is None or node.input[1] not in self.constants:
            return None
        return Norm(node.input[0], node.input[1], node.attribute[0].f)

    def gate(self, tensor: str) -> Gate | None:
        """The gate that produces `tensor`, if there is one."""
        node = self.makers.get(tensor)
        if node is None or node.domain != DOMAIN or node.op_type not in GATES:
            return None
        attributes = tuple((attribute.name, attribute.f) for attribute in node.attribute)
        return Gate(GateFunction(node.op_type, attributes), node.input[0], node.input[1])

    def slice(self, tensor: str) -> Slice | None:
        """What produces `tensor`, if that is a Slice along one axis with constant bounds and a step of 1."""
        from onnx import numpy_helper

        node = self.maker(tensor, "Slice")
        if node is None or len(node.input) != 5 or any(name not in self.constants for name in node.input[1:]):
            return None
        bounds = [numpy_helper.to_array(self.constants[name]) for name in node.input[1:]]
        if any(bound.size != 1 for bound in bounds) or bounds[3].item() != 1:
            return None
        return Slice(node.input[0], *(int(bound.item()) for bound in bounds[:3]))

    def rotations(self) -> Iterator[Rotation]:
        """Rotated float32 products whose result is an output of the graph, which gives its shape."""
        from onnx import TensorProto

        for name, value in self.results.items():
            node = self.maker(name, ROTATION, DOMAIN)
            if node is None or value.type.tensor_type.elem_type != TensorProto.FLOAT:
                continue
            _, heads, size = self.shape(name)
            x, cos, sin = node.input
            reshape = self.maker(x, "Reshape")
            yield Rotation(x if reshape is None else reshape.input[0], cos, sin, name, heads, size)


def make_node(
    op_type: str, inputs: Sequence[str], *outputs: str, name: str = "", domain: str = "", **settings: Any
) -> Any:
    """A node with these attributes, named after its first output unless `name` is given."""
    from onnx import helper

    return helper.make_node(op_type, inputs, outputs, name=name or outputs[0], domain=domain, **settings)


def with_nodes(
    model: Any, nodes: Sequence[Any], initializers: Sequence[Any], domain: str, version: int
) -> Any:
    """A ModelProto like `model`, with these nodes and initializers, and with the operators of a domain."""
    from onnx import ModelProto, helper

    graph, result = model.graph, ModelProto(ir_version=model.ir_version)
    result.functions.extend(model.functions)
    result.opset_import.extend(model.opset_import)
    import_domain(result, domain, version)
    result.graph.CopyFrom(helper.make_graph(nodes, graph.name, graph.input, graph.output, initializers))
    return result


def import_domain(model: Any, domain: str, version: int) -> None:
    """Let a ModelProto use the operators of a domain."""
    from onnx import helper

    if all(opset.domain != domain for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(domain, version))


def keep_needed(graph: Any) -> None:
    """Drop nodes and constants that no result needs; sort the others topologically."""
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
            raise BundleError(
                f"graph {graph.name}: no node computes an input of {late[0].name}; export the checkpoint again"
            )
        pending = late
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(constants)


@dataclass(frozen=True)
class Mixture:
    """x [n, D] → out [n, D]: each row goes to the experts that it chose, and their results are weighed and added.

    chosen  int64 [n, k]: the experts of a row
    shares  float32 [n, k]: the weight of each
    said    the results of all experts, in their order: [rows that chose it, D]; nothing else reads them
    """

    x: str
    chosen: str
    shares: str
    said: tuple[str, ...]
    out: str


class _OtherNodesError(LookupError):
    """What makes a tensor is not what a mixture has there."""


def mixtures(view: GraphView, inputs: Mapping[str, str]) -> Iterator[Mixture]:
    """All mixtures of a graph, as the exporter lays them out with standard operators, each found from its sum on.
    `inputs` are what MLPs read, by their results.
    """
    for node in view.graph.node:
        if node.op_type == "ReduceSum":
            try:
                yield _mixture(view, node, inputs)
            except _OtherNodesError:
                continue


def _mixture(view: GraphView, total: Any, inputs: Mapping[str, str]) -> Mixture:
    slots, weights = _up(view, total.input[0], "Mul").input
    together, back = _up(view, slots, "Reshape", "Gather").input
    said = tuple(_up(view, together, "Concat").input)
    order = _up(view, back, "TopK").input[0]
    rows = [inputs.get(name, "") for name in said]
    split = _up(view, rows[0], "Split")
    x, tokens = _up(view, split.input[0], "Gather").input
    alone = all(len(view.readers(name)) == 1 for name in said)
    if not alone or list(split.output) != rows or _up(view, tokens, "Div").input[0] != order:
        raise _OtherNodesError
    return Mixture(
        x,
        chosen=_up(view, order, "TopK", "Reshape").input[0],
        shares=_up(view, weights, "Unsqueeze").input[0],
        said=said,
        out=total.output[0],
    )


def _up(view: GraphView, tensor: str, *op_types: str) -> Any:
    """The last of the nodes with these operators, from the one that makes `tensor` along first inputs."""
    node = None
    for op_type in op_types:
        node = view.maker(tensor, op_type)
        if node is None:
            raise _OtherNodesError
        tensor = node.input[0]
    return node
