"""Dense graphs with products of our own: PackedProduct, of plugins/ort, in place of what the graphs have.

Where weights are integers, activations become integers in blocks as small; those of a head twice, first as they
are and then what that has lost, 15 bits together, for it goes straight into the logits. Where weights are float32
nothing is rounded. Products that read the same activations are one node, which prepares them once. It takes in what
stands around a product: offsets of blocks, the gate of an MLP before it, and the residual that is added to its
result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from h2o_plugins import NativeKernelsMissing, cpu_kernels, onnxruntime_operators
from h2o_runtime.errors import BackendError
from h2o_runtime.ort.matrices import FloatProduct
from h2o_runtime.ort.packed import Kind, Product, pack_matrices, products

DOMAIN = "h2o.cpu"
OPERATOR = "PackedProduct"
MOST_MATRICES = 8  # of one node

Arrays = Mapping[str, NDArray[Any]]


def is_fast() -> bool:
    """Whether products of our own are there and this CPU has instructions for them."""
    kernels = cpu_kernels()
    return kernels is not None and kernels.product_instructions() != "scalar"


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
    for product in _nodes(graph):
        made, weights = product.build(tensors, path.parent)
        gone = {name for node in product.replaced for name in node.output}
        at = next(i for i, node in enumerate(nodes) if node.output[0] == product.place)
        before, after = ([n for n in some if n.output[0] not in gone] for some in (nodes[:at], nodes[at:]))
        nodes = [*before, *made, *after]
        arrays.update(weights)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    named = [_named(name, array, path) for name, array in arrays.items()]
    result = onnx.ModelProto(ir_version=model.ir_version)
    result.opset_import.extend([*model.opset_import, onnx.helper.make_opsetid(DOMAIN, 1)])
    result.graph.CopyFrom(
        onnx.helper.make_graph(nodes, graph.name, graph.input, graph.output, [*kept, *named])
    )
    return result, arrays


def _named(name: str, array: NDArray[Any], path: Path) -> Any:
    from onnx import TensorProto, helper

    tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
    tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    for key, value in {"location": path.name, "offset": 0, "length": array.nbytes}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@dataclass(frozen=True)
class _Node:
    """One PackedProduct.

    parts     matrices that are multiplied with the same activations
    x, up     the activations; or what the gate of an MLP has to make of them
    addend    what is added to the result of the only part, or ""
    outputs   of each part
    replaced  nodes that it stands for
    place     the output of the one whose place it takes: behind all that it reads, before all that read it
    """

    parts: tuple[Product, ...]
    x: str
    up: str
    addend: str
    outputs: tuple[str, ...]
    replaced: tuple[Any, ...]
    place: str
    head: bool

    def build(self, tensors: Mapping[str, Any], folder: Path) -> tuple[list[Any], Arrays]:
        """The node, with what adds biases behind it, and its weights."""
        from onnx import helper

        kind = Kind.of(self.parts[0])
        packed = pack_matrices(self.parts, tensors, folder)
        given = {"weights": packed.weights, "scales": packed.scales, "offsets": packed.offsets}
        arrays = {f"{self.outputs[0]}/{key}": array for key, array in given.items() if array is not None}
        names = [f"{self.outputs[0]}/{key}" if array is not None else "" for key, array in given.items()]
        biases = {
            out: part.bias
            for out, part in zip(self.outputs, self.parts, strict=True)
            if isinstance(part, FloatProduct) and part.bias
        }
        product = helper.make_node(
            OPERATOR,
            [self.x, *names, self.up, self.addend],
            [f"{self.outputs[0]}/scratch", *(f"{o}/product" if o in biases else o for o in self.outputs)],
            name=self.outputs[0],
            domain=DOMAIN,
            K=packed.inputs,
            N=packed.outputs,
            block=kind.block,
            bits=kind.bits,
            parts=2 if self.head and kind.bits < 32 else 1,
        )
        sums = [
            helper.make_node("Add", [f"{out}/product", bias], [out], name=f"{out}/Add")
            for out, bias in biases.items()
        ]
        return [product, *sums], arrays


def _nodes(graph: Any) -> Iterator[_Node]:
    makers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    results = {
        value.name for value in graph.output
    }  # a head's product alone is one; others go through more nodes
    constants = {tensor.name for tensor in graph.initializer}
    together: dict[tuple[str, Kind], list[Product]] = {}
    for one in products(graph):
        together.setdefault((one.product.input[0], Kind.of(one)), []).append(one)
    for parts in together.values():
        for start in range(0, len(parts), MOST_MATRICES):
            yield _surrounded(parts[start : start + MOST_MATRICES], makers, readers, results, constants)


def _surrounded(
    parts: Sequence[Product],
    makers: Mapping[str, Any],
    readers: Mapping[str, Sequence[Any]],
    results: set[str],
    constants: set[str],
) -> _Node:
    """Parts with the same input, and what stands around them."""
    replaced = [node for part in parts for node in part.nodes]
    outputs = [part.output for part in parts]
    head = outputs[0] in results
    addend, place = "", parts[0].product.output[0]
    if len(parts) == 1 and not head:
        sum_node, addend = _sum(outputs[0], readers, constants)
        if sum_node is not None:
            replaced.append(sum_node)
            place = sum_node.output[0]
            outputs = [place]
    x, up = _gate(parts[0].product.input[0], makers)
    return _Node(tuple(parts), x, up, addend, tuple(outputs), tuple(replaced), place, head)


def _sum(product: str, readers: Mapping[str, Sequence[Any]], constants: set[str]) -> tuple[Any | None, str]:
    """The only reader of a product, where it adds something that is as large, and what."""
    found = readers.get(product, [])
    if len(found) == 1 and found[0].op_type == "Add":
        (other,) = (name for name in found[0].input if name != product)
        if other not in constants:  # a bias is smaller
            return found[0], other
    return None, ""


def _gate(x: str, makers: Mapping[str, Any]) -> tuple[str, str]:
    """x = gate · sigmoid(gate) · up → (gate, up), or else (x, "")."""
    for silu, up in _factors(x, makers):
        for gate, sigmoid in _factors(silu, makers):
            maker = makers.get(sigmoid)
            if maker is not None and maker.op_type == "Sigmoid" and maker.input[0] == gate:
                return gate, up
    return x, ""


def _factors(x: str, makers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Both orders of what is multiplied to x."""
    maker = makers.get(x)
    if maker is not None and maker.op_type == "Mul":
        a, b = maker.input
        yield a, b
        yield b, a
