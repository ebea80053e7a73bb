"""Dense forms: how ONNX Runtime multiplies with integer weights on a CPU. Graphs are rewritten as they are loaded.

exact   as the graph says: every call makes floats of all weights, and multiplies those
native  products of our own: see h2o_runtime.dense_graphs.native
blocks  MatMulNBits: activations become integers too, in blocks as small as those of the weights; those of a head
        of 8 bits twice, first as they are and then what that has lost
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.dense_graphs.fusion import MICROSOFT
from h2o_runtime.dense_graphs.graph_view import make_node, with_nodes
from h2o_runtime.dense_graphs.matrices import Matrix, QuantizedProduct, floats, quantized_products

INTEGER_ACTIVATIONS = 4  # MatMulNBits' accuracy_level


def multiply_integers(model: Any, folder: Path) -> Any:
    """A ModelProto with files in `folder` → one with products of the dense form "blocks". Changed weights are
    inside.

    The rounding error of a head's inputs goes directly into the logits, so these have 15 bits. If activations
    are float16, a head is like all other products.
    """
    import onnx

    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    found = list(quantized_products(graph))
    rewritten = _Rewritten(tensors, folder)
    products = {product.product.output[0]: product for product in found}
    gone = {product.dequantize.output[0] for product in found}
    nodes = list(graph.node)
    outputs = {
        value.name for value in graph.output
    }  # only a head has a single product; others go through more nodes
    together: dict[tuple[Any, ...], list[QuantizedProduct]] = {}
    for product in found:
        together.setdefault(_alike(product), []).append(product)
    for node in nodes:
        if node.output[0] in products:
            product = products[node.output[0]]
            x = product.product.input[0]
            half = tensors[product.scales].data_type == onnx.TensorProto.FLOAT16
            if node.output[0] in outputs and not half:
                rewritten.head(product)
            elif (group := together[_alike(product)])[0] is product:
                rewritten.blocks(group, x)
                gone.update(node.output for node in group)
        elif node.output[0] not in gone:
            rewritten.nodes.append(node)
    used = {name for node in rewritten.nodes for name in node.input}
    unchanged = [tensor for tensor in graph.initializer if tensor.name in used]
    return with_nodes(model, rewritten.nodes, [*unchanged, *rewritten.tensors], MICROSOFT, 1)


def _alike(product: QuantizedProduct) -> tuple[Any, ...]:
    """What products have in common that become one."""
    return product.product.input[0], product.bits, product.block_size, product.offset is not None


class _Rewritten:
    """The nodes and initializers of the new graph, as they are created."""

    def __init__(self, tensors: dict[str, Any], folder: Path) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self._given = tensors
        self._folder = folder

    def head(self, product: QuantizedProduct) -> None:
        """Two rows for each row in one product of blocks: activations as integers, and their rounding
        error.
        """
        x, out = product.product.input[0], product.product.output[0]
        block = self._constant("block", np.array([0, -1, product.block_size], np.int64))
        last = self._constant("last_of_3", np.array([2], np.int64))
        self._node("Reshape", [x, block], f"{x}/Reshape")  # [n, blocks, block size]
        self._node("Abs", [f"{x}/Reshape"], f"{x}/Abs")
        self._node("ReduceMax", [f"{x}/Abs", last], f"{x}/ReduceMax")
        self._node("Max", [f"{x}/ReduceMax", self._constant("tiny", np.float32(1e-30))], f"{x}/Max")
        self._node("Mul", [f"{x}/Max", self._constant("step", np.float32(1 / 127))], f"{x}/scale")
        self._node("Div", [f"{x}/Reshape", f"{x}/scale"], f"{x}/Div")
        self._node("Round", [f"{x}/Div"], f"{x}/Round")
        self._node("Mul", [f"{x}/Round", f"{x}/scale"], f"{x}/high")
        self._node("Sub", [f"{x}/Reshape", f"{x}/high"], f"{x}/low")
        self._node("Concat", [f"{x}/high", f"{x}/low"], f"{x}/Concat", axis=0)
        self._node("Flatten", [f"{x}/Concat"], f"{x}/halves", axis=1)
        self._multiply([product], f"{x}/halves", f"{out}/halves")
        self._node("Split", [f"{out}/halves"], f"{out}/high", f"{out}/low", axis=0, num_outputs=2)
        self._node("Add", [f"{out}/high", f"{out}/low"], out)

    def blocks(self, products: Sequence[QuantizedProduct], x: str) -> None:
        """Joins products that read the same activations into one, so that these are rounded once."""
        outs = [product.output for product in products]
        out = outs[0] if len(outs) == 1 else f"{outs[0]}/together"
        offsets = [product.offset.input for product in products if product.offset is not None]
        sizes = self._multiply(products, x, f"{out}/integers" if offsets else out)
        if offsets:
            sums, name, _ = offsets[0]
            whole = np.concatenate([floats(self._given[node[1]], self._folder) for node in offsets], axis=1)
            self._node("Gemm", [sums, self._add(name, whole), f"{out}/integers"], out)
        if len(outs) > 1:
            self._node("Split", [out, self._add(out, np.array(sizes, np.int64))], *outs, axis=1)

    def _multiply(self, products: Sequence[QuantizedProduct], x: str, out: str) -> list[int]:
        """Returns how many columns of `out` each product has."""
        matrices = [Matrix.read(product, self._given, self._folder) for product in products]
        bits, block_size, k = products[0].bits, products[0].block_size, matrices[0].q.shape[1]
        q = np.concatenate([unsigned(matrix.q, bits) for matrix in matrices])
        weight = self._add(products[0].weight, q.reshape(len(q), k // block_size, block_size * bits // 8))
        scales = self._add(products[0].scales, np.concatenate([matrix.scales for matrix in matrices]))
        self._node(
            "MatMulNBits",
            [x, weight, scales],
            out,
            domain=MICROSOFT,
            K=k,
            N=len(q),
            bits=bits,
            block_size=block_size,
            accuracy_level=INTEGER_ACTIVATIONS,
        )
        return [len(matrix.q) for matrix in matrices]

    def _constant(self, name: str, value: Any) -> str:
        name = f"blocks/{name}"
        if all(tensor.name != name for tensor in self.tensors):
            self._add(name, np.asarray(value))
        return name

    def _add(self, name: str, array: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self.tensors.append(
            numpy_helper.from_array(array, name if name.startswith("blocks/") else f"{name}/rewritten")
        )
        return str(self.tensors[-1].name)

    def _node(self, op_type: str, inputs: Sequence[str], *outputs: str, **settings: Any) -> None:
        self.nodes.append(make_node(op_type, inputs, *outputs, **settings))


def unsigned(q: NDArray[np.int8], bits: int) -> NDArray[np.uint8]:
    """int8 [N, K] around 0 → [N, K · bits / 8], around the middle of the unsigned range."""
    if bits == 8:
        return np.bitwise_xor(q.view(np.uint8), np.uint8(0x80))
    offset = np.bitwise_and(np.bitwise_xor(q.view(np.uint8), np.uint8(8)), np.uint8(15))
    packed: NDArray[np.uint8] = np.bitwise_or(offset[:, 0::2], np.left_shift(offset[:, 1::2], np.uint8(4)))
    return packed
