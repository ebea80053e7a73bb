"""Dense graphs with products of our own: PackedProduct, of plugins/ort, in place of DequantizeLinear and MatMul.

Activations become integers in blocks as small as those of the weights; those of a head twice, first as they are and
then what that has lost, 15 bits together, for it goes straight into the logits. Products that read the same
activations are one node, which makes integers of them once. It takes in what stands around a product: offsets of
blocks, the gate of an MLP before it, and the residual that is added to its result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_plugins import NativeKernelsMissing, cpu_kernels, onnxruntime_operators
from h2o_runtime.errors import BackendError
from h2o_runtime.ort.matrices import Matrix, QuantizedProduct, floats, quantized_products
from h2o_runtime.ort.panels import pack, pack_scales

DOMAIN = "h2o.cpu"
OPERATOR = "PackedProduct"
BLOCKS = range(16, 257, 16)  # sizes that it takes
MOST_MATRICES = 8  # of one node


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


def takes(graph: Any) -> bool:
    """Whether all products of a GraphProto can be of our own: float32, in blocks of a size that kernels know."""
    from onnx import TensorProto

    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    return all(
        types[product.scales] == TensorProto.FLOAT and product.block_size in BLOCKS
        for product in quantized_products(graph)
    )


def multiply_natively(model: Any, folder: Path) -> Any:
    """A ModelProto with files in `folder` → one with products of our own; weights that change are inside."""
    import onnx

    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[Any] = list(graph.node)
    added: list[Any] = []
    for product in _products(graph):
        made, weights = product.build(tensors, folder)
        gone = {name for node in product.replaced for name in node.output}
        at = next(i for i, node in enumerate(nodes) if node.output[0] == product.place)
        nodes[at] = made
        nodes = [node for node in nodes if node is made or node.output[0] not in gone]
        added.extend(weights)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    result = onnx.ModelProto(ir_version=model.ir_version)
    result.opset_import.extend([*model.opset_import, onnx.helper.make_opsetid(DOMAIN, 1)])
    result.graph.CopyFrom(
        onnx.helper.make_graph(nodes, graph.name, graph.input, graph.output, [*kept, *added])
    )
    return result


@dataclass(frozen=True)
class _Product:
    """One PackedProduct.

    parts     matrices that are multiplied with the same activations
    x, up     the activations; or what the gate of an MLP has to make of them
    addend    what is added to the result of the only part, or ""
    outputs   of each part
    replaced  nodes that it stands for
    place     the output of the one whose place it takes: behind all that it reads, before all that read it
    """

    parts: tuple[QuantizedProduct, ...]
    x: str
    up: str
    addend: str
    outputs: tuple[str, ...]
    replaced: tuple[Any, ...]
    place: str
    head: bool

    def build(self, tensors: Mapping[str, Any], folder: Path) -> tuple[Any, list[Any]]:
        """The node, and its weights."""
        from onnx import helper, numpy_helper

        first = self.parts[0]
        matrices = [Matrix.read(part, tensors, folder) for part in self.parts]
        named: dict[str, list[NDArray[Any]]] = {
            f"{first.weight}/packed": [pack(m.q, first.bits, first.block_size).reshape(-1) for m in matrices],
            f"{first.scales}/packed": [pack_scales(m.scales).reshape(-1) for m in matrices],
        }
        offsets = [floats(tensors[part.offset.input[1]], folder).T for part in self.parts if part.offset]
        if offsets:
            named[f"{first.scales}/offsets"] = [pack_scales(one).reshape(-1) for one in offsets]
        weights = [numpy_helper.from_array(np.concatenate(arrays), name) for name, arrays in named.items()]
        inputs = [self.x, *named, *([] if offsets else [""]), self.up, self.addend]
        node = helper.make_node(
            OPERATOR,
            inputs,
            [f"{self.outputs[0]}/scratch", *self.outputs],
            name=self.outputs[0],
            domain=DOMAIN,
            K=matrices[0].q.shape[1],
            N=[len(matrix.q) for matrix in matrices],
            block=first.block_size,
            bits=first.bits,
            parts=2 if self.head else 1,
        )
        return node, weights


def _products(graph: Any) -> Iterator[_Product]:
    makers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    results = {
        value.name for value in graph.output
    }  # a head's product alone is one; others go through more nodes
    constants = {tensor.name for tensor in graph.initializer}
    together: dict[tuple[str, int, int, bool], list[QuantizedProduct]] = {}
    for one in quantized_products(graph):
        key = (one.product.input[0], one.bits, one.block_size, one.offset is not None)
        together.setdefault(key, []).append(one)
    for parts in together.values():
        for start in range(0, len(parts), MOST_MATRICES):
            yield _surrounded(parts[start : start + MOST_MATRICES], makers, readers, results, constants)


def _surrounded(
    parts: Sequence[QuantizedProduct],
    makers: Mapping[str, Any],
    readers: Mapping[str, Sequence[Any]],
    results: set[str],
    constants: set[str],
) -> _Product:
    """Parts with the same input, and what stands around them."""
    replaced = [node for part in parts for node in (part.dequantize, part.product, part.offset) if node]
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
    return _Product(tuple(parts), x, up, addend, tuple(outputs), tuple(replaced), place, head)


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
