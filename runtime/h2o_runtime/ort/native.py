"""Dense graphs with products of our own: PackedProduct, of plugins/ort, in place of what the graphs have.

Where weights are integers, activations become integers in blocks as small; those of a head twice, first as they
are and then what that has lost, 15 bits together, for it goes straight into the logits. Where weights are float32
nothing is rounded. Products that read the same activations are one node, which prepares them once.

It takes in what stands around a product, for of one token of a small model every node costs as much as a matrix:
the norm or the gate of an MLP before it, offsets of blocks, the residual that is added to its result, the rotation
of queries and keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from h2o_plugins import NativeKernelsMissing, cpu_kernels, onnxruntime_operators
from h2o_runtime.errors import BackendError
from h2o_runtime.ort.graph_view import GraphView, Rotation, keep_needed
from h2o_runtime.ort.matrices import FloatProduct
from h2o_runtime.ort.packed import Kind, Product, pack_matrices, products

DOMAIN = "h2o.cpu"
OPERATOR = "PackedProduct"
MOST_MATRICES = 8  # of one node
ROTATED_STEP = 32  # of the size of heads that it turns

Arrays = Mapping[str, NDArray[Any]]


def is_fast() -> bool:
    """Whether products of our own are there and this CPU has instructions for them."""
    kernels = cpu_kernels()
    if kernels is None or kernels.product_instructions() == "scalar":
        return False
    try:
        onnxruntime_operators()
    except NativeKernelsMissing:
        return False
    return True


def operators() -> Path:
    """The library that ONNX Runtime loads. Raises BackendError where there is none."""
    try:
        return onnxruntime_operators()
    except NativeKernelsMissing as error:
        raise BackendError(f"{error}, or choose another --dense-form") from None


def multiply_natively(model: Any, path: Path) -> tuple[Any, Arrays]:
    """A ModelProto that was loaded from `path` → one with products of our own, and weights to give its session.

    The model only names these: inside it they would be in memory three times while a session is made, and two
    gigabytes at most. ONNX Runtime wants a file behind each; that is `path`, of which it reads nothing.
    """
    import onnx

    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[Any] = list(graph.node)
    arrays: dict[str, NDArray[Any]] = {}
    for node in _nodes(GraphView(graph)):
        made, weights = node.build(tensors, path.parent)
        fresh = {name for one in made for name in one.output}
        nodes = [*(one for one in nodes if fresh.isdisjoint(one.output)), *made]
        arrays.update(weights)
    result = onnx.ModelProto(ir_version=model.ir_version)
    result.functions.extend(model.functions)
    result.opset_import.extend([*model.opset_import, onnx.helper.make_opsetid(DOMAIN, 1)])
    initializers = [*graph.initializer, *(_named(name, array, path) for name, array in arrays.items())]
    result.graph.CopyFrom(onnx.helper.make_graph(nodes, graph.name, graph.input, graph.output, initializers))
    keep_needed(result.graph)
    return result, arrays


def _named(name: str, array: NDArray[Any], path: Path) -> Any:
    from onnx import TensorProto, helper

    tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
    tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    for key, value in {"location": path.name, "offset": 0, "length": array.nbytes}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@dataclass(frozen=True)
class _Before:
    """What a node makes of its activations: of x as it is, of a gate and `up`, or by a norm's weights."""

    x: str
    up: str = ""
    norm: str = ""
    epsilon: float = 0.0


@dataclass(frozen=True)
class _After:
    """Where a product's result goes.

    addend    what is added to it, or ""
    heads     how many heads it is cut into, or 0
    rotation  what turns them, or None
    """

    out: str
    addend: str = ""
    heads: int = 0
    rotation: Rotation | None = None


@dataclass(frozen=True)
class _Node:
    """One PackedProduct of matrices that read the same activations; those with rotated results come first."""

    products: tuple[Product, ...]
    before: _Before
    after: tuple[_After, ...]
    head: bool

    def build(self, tensors: Mapping[str, Any], folder: Path) -> tuple[list[Any], Arrays]:
        """The node, with what adds biases behind it, and its weights."""
        from onnx import helper

        kind = Kind.of(self.products[0])
        packed = pack_matrices(self.products, tensors, folder)
        name = self.after[0].out
        given = {"weights": packed.weights, "scales": packed.scales, "offsets": packed.offsets}
        arrays = {f"{name}/{key}": array for key, array in given.items() if array is not None}
        names = [f"{name}/{key}" if array is not None else "" for key, array in given.items()]
        biases = {
            after.out: one.bias
            for after, one in zip(self.after, self.products, strict=True)
            if isinstance(one, FloatProduct) and one.bias
        }
        outs = [f"{after.out}/product" if after.out in biases else after.out for after in self.after]
        turned = [after.rotation for after in self.after if after.rotation is not None]
        tables = [turned[0].cos, turned[0].sin] if turned else ["", ""]
        before = self.before
        product = helper.make_node(
            OPERATOR,
            [before.x, *names, before.up, before.norm, self.after[0].addend, *tables],
            [f"{name}/scratch", *outs],
            name=name,
            domain=DOMAIN,
            K=packed.inputs,
            N=packed.outputs,
            heads=[after.heads for after in self.after],
            block=kind.block,
            bits=kind.bits,
            parts=2 if self.head and kind.bits < 32 else 1,
            rotated=len(turned),
            epsilon=before.epsilon,
        )
        sums = [
            helper.make_node("Add", [f"{out}/product", bias], [out], name=f"{out}/Add")
            for out, bias in biases.items()
        ]
        return [product, *sums], arrays


def _nodes(view: GraphView) -> Iterator[_Node]:
    rotations = {rotation.x: rotation for rotation in view.rotations()}
    if len({(rotation.cos, rotation.sin) for rotation in rotations.values()}) > 1:
        rotations = {}  # a node has one pair of tables
    together: dict[tuple[str, Kind], list[Product]] = {}
    for one in products(view.graph):
        together.setdefault((one.product.input[0], Kind.of(one)), []).append(one)
    for group in together.values():
        for start in range(0, len(group), MOST_MATRICES):
            some = group[start : start + MOST_MATRICES]
            ends = [(product, _after(product, view, rotations, alone=len(some) == 1)) for product in some]
            ends.sort(key=lambda end: end[1].rotation is None)
            yield _Node(
                tuple(product for product, _ in ends),
                _before(some[0].product.input[0], view),
                tuple(after for _, after in ends),
                head=some[0].output in view.results,  # its product alone is one; others go through more nodes
            )


def _before(x: str, view: GraphView) -> _Before:
    gate = view.gate(x)
    if gate is not None:
        return _Before(gate[0], up=gate[1])
    norm = view.norm(x)
    if norm is not None:
        return _Before(norm.x, norm=norm.weight, epsilon=norm.epsilon)
    reshape = view.maker(x, "Reshape")
    shape = () if reshape is None else view.shape(reshape.input[0])
    if reshape is not None and len(shape) == 3 and shape[1] > 1:
        return _Before(reshape.input[0])  # [n, heads, K / heads]
    return _Before(x)


def _after(product: Product, view: GraphView, rotations: Mapping[str, Rotation], alone: bool) -> _After:
    out = product.output
    if isinstance(product, FloatProduct) and product.bias:
        return _After(out)
    readers = view.readers(out)
    if len(readers) != 1 or out in view.results:
        return _After(out)
    (reader,) = readers
    if reader.op_type == "Add" and alone:
        (other,) = (name for name in reader.input if name != out)
        if other not in view.constants:  # a bias is smaller
            return _After(reader.output[0], addend=other)
    if reader.op_type == "Reshape":
        rotation = rotations.get(out)
        # Only the rotation may want what is not turned.
        if rotation and rotation.size % ROTATED_STEP == 0 and len(view.readers(reader.output[0])) == 1:
            return _After(rotation.out, heads=rotation.heads, rotation=rotation)
        shape = view.shape(reader.output[0])
        if len(shape) == 3 and reader.output[0] in view.results:
            return _After(reader.output[0], heads=shape[1])
    return _After(out)
