"""Weights as small integers with one scale per block of a row; DequantizeLinear comes before the nodes that
read them.

A row that is no whole number of blocks is filled up to one; the graph adds zeros to the activations of products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.checkpoints import Checkpoint
from h2o_export.tensors import Integers, QuantizedTensor, to_dtype
from h2o_export.weights import StoredTensor, WeightFile

OPSET = 21  # first versions with blocks in DequantizeLinear, and int4
IR_VERSION = 10
BLOCK_SIZES = (16, 32, 64, 128, 256)  # block sizes of ONNX Runtime's MatMulNBits
ROUNDED_AT_ONCE = 1 << 23  # elements

_DTYPES = {4: ir.DataType.INT4, 8: ir.DataType.INT8}
_FLOATS = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16}


@dataclass(frozen=True)
class Blocks:
    """Symmetric integers of 4 or 8 bits; blocks are along the inputs of a matrix [out, in].

    dtype  of the graph, and so of the scales
    table  for a lookup table and a head tied to it: stored [out, in] as in checkpoints. Otherwise stored [in, out],
           as MatMul reads it; ONNX Runtime fuses the two nodes to MatMulNBits.
    """

    bits: Literal[4, 8]
    block_size: int
    dtype: Literal["float32", "float16"]
    table: bool = False

    @property
    def name(self) -> str:
        return f"int{self.bits}"

    def place(self, model: ir.Model, weight: ir.Value) -> tuple[ir.Value, ...]:
        assert weight.shape is not None
        rows, columns = (int(size) for size in weight.shape.numpy())
        shapes = [(rows, padded(columns, self.block_size)), (rows, blocks_of(columns, self.block_size))]
        q, scales = (
            ir.Value(name=name, shape=ir.Shape(self._as_stored(*shape)), type=ir.TensorType(dtype))
            for name, shape, dtype in (
                (str(weight.name), shapes[0], _DTYPES[self.bits]),
                (f"{weight.name}.scales", shapes[1], self._floats),
            )
        )
        for node, index in tuple(weight.uses()):
            if node.op_type == "Gather":
                self._look_up(model.graph, node, columns, q, scales)
            else:
                self._pad(model.graph, node, columns)
                self._multiply(model.graph, node, index, q, scales)
        del model.graph.initializers[str(weight.name)]
        for value in (q, scales):
            model.graph.initializers.add(value)
        model.opset_imports[""] = max(OPSET, model.opset_imports[""])
        model.ir_version = max(IR_VERSION, model.ir_version)
        return q, scales

    def store(
        self, checkpoint: Checkpoint, name: str, shape: tuple[int, ...], file: WeightFile
    ) -> tuple[StoredTensor, ...]:
        return self._write(self._quantized(checkpoint, name, shape), file)

    def _write(self, found: QuantizedTensor, file: WeightFile) -> tuple[StoredTensor, ...]:
        q = found.q if self.table else found.q.T
        packed = np.ascontiguousarray(q) if self.bits == 8 else pack(q)
        stored = file.add_array(packed, _DTYPES[self.bits], q.shape)
        return stored, self._write_floats(found.scales, file)

    def _write_floats(self, values: NDArray[np.float32], file: WeightFile) -> StoredTensor:
        """One for each block of each row, [N, K / block size]."""
        stored = np.ascontiguousarray(values if self.table else values.T).astype(self.dtype)
        return file.add_array(stored, self._floats, stored.shape)

    @property
    def _floats(self) -> ir.DataType:
        return _FLOATS[self.dtype]

    def rounded(self, checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(self._quantized(checkpoint, name, shape).dequantize()[:, : shape[1]])

    def keeps(self, found: Integers | None) -> bool:
        whole = found is not None and found.block_size is not None and found.block_size % self.block_size == 0
        return found is not None and whole and found.bits <= self.bits and not found.offsets

    def nbytes(self, shape: tuple[int, ...]) -> int:
        rows, columns = shape
        integers = rows * padded(columns, self.block_size)
        return integers * self.bits // 8 + self._floats_nbytes(shape)

    def _floats_nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of one float for each block."""
        return shape[0] * blocks_of(shape[1], self.block_size) * np.dtype(self.dtype).itemsize

    def checkpoint_blocks(self, checkpoint: Checkpoint, name: str) -> QuantizedTensor | None:
        """The checkpoint's own blocks, if they can be stored unchanged. Raises CheckpointError."""
        stored = checkpoint.blocks(name)
        found = None if stored is None else self._of_this_kind(stored.in_floats("float32", name))
        if found is None or found.bits > self.bits or found.block_size % self.block_size:
            return None
        return found.in_blocks_of(self.block_size).in_floats(self.dtype, name)

    def _of_this_kind(self, tensor: QuantizedTensor) -> QuantizedTensor | None:
        return tensor.without_offsets()

    def _quantized(self, checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> QuantizedTensor:
        """The checkpoint's own blocks if they can be stored unchanged; otherwise its floats, rounded."""
        tensor = self.checkpoint_blocks(checkpoint, name)
        return tensor if tensor is not None else self._quantize(checkpoint.tensor(name, shape), name)

    def _quantize(self, values: Tensor, name: str) -> QuantizedTensor:
        return quantize(values, self.bits, self.block_size, self.dtype, name)

    def _pad(self, graph: ir.Graph, gemm: ir.Node, columns: int) -> None:
        """Give the product as many inputs as the stored matrix has; products that read the same share them."""
        missing = padded(columns, self.block_size) - columns
        x = gemm.inputs[0]
        if not missing or x is None:
            return
        name = f"{x.name}/padded"
        found = next((user for user, _ in x.uses() if user.name == name), None)
        if found is None:
            pads = constant(graph, f"pad_by_{missing}", [0, 0, 0, missing])
            found = ir.node("Pad", [x, pads], name=name)
            found.outputs[0].name = name
            insert_behind(graph, x, [found])
        gemm.replace_input_with(0, found.outputs[0])

    def _look_up(self, graph: ir.Graph, gather: ir.Node, columns: int, q: ir.Value, scales: ir.Value) -> None:
        """The graph looks up rows of integers and scales; only these become floats, not the whole table."""
        _, indices = gather.inputs
        found = [
            ir.node("Gather", [value, indices], {"axis": 0}, name=f"{value.name}/Gather")
            for value in (q, scales)
        ]
        rows, row_scales = (node.outputs[0] for node in found)
        nodes = [*found, self._dequantize(rows, row_scales, f"{q.name}/DequantizeLinear")]
        if columns % self.block_size:
            cut = [
                constant(graph, f"cut_{name}", [at])
                for name, at in (("from", 0), ("to", columns), ("axis", 1))
            ]
            nodes.append(ir.node("Slice", [nodes[-1].outputs[0], *cut], name=f"{q.name}/Slice"))
        self._replace(graph, gather, nodes)

    def _multiply(self, graph: ir.Graph, gemm: ir.Node, index: int, q: ir.Value, scales: ir.Value) -> None:
        assert gemm.op_type == "Gemm", gemm.op_type
        assert index == 1, index
        floats = self._dequantize(q, scales, f"{gemm.name}/DequantizeLinear")
        if self.table:  # Gemm transposed it, too
            graph.insert_before(gemm, floats)
            gemm.replace_input_with(index, floats.outputs[0])
            return
        product = ir.node("MatMul", [gemm.inputs[0], floats.outputs[0]], name=renamed(gemm, "MatMul"))
        nodes = [floats, product, *self._corrected(graph, gemm, product.outputs[0])]
        if len(gemm.inputs) > 2:
            nodes.append(ir.node("Add", [nodes[-1].outputs[0], gemm.inputs[2]], name=renamed(gemm, "Add")))
        self._replace(graph, gemm, nodes)

    def _corrected(self, graph: ir.Graph, gemm: ir.Node, product: ir.Value) -> list[ir.Node]:
        """The offset term of the product."""
        return []

    def _dequantize(self, q: ir.Value, scales: ir.Value, name: str) -> ir.Node:
        axis = 1 if self.table else 0
        return ir.node(
            "DequantizeLinear", [q, scales], {"axis": axis, "block_size": self.block_size}, name=name
        )

    def _replace(self, graph: ir.Graph, old: ir.Node, nodes: list[ir.Node]) -> None:
        """`nodes` replace `old`; the output of the last node takes its name."""
        given, output = old.outputs[0], nodes[-1].outputs[0]
        output.name, output.shape, output.type = given.name, given.shape, given.type
        for node in nodes[:-1]:
            node.outputs[0].name = node.name
        graph.insert_before(old, nodes)
        given.replace_all_uses_with(output, replace_graph_outputs=True)
        graph.remove(old, safe=True)

    def _as_stored(self, rows: int, columns: int) -> tuple[int, int]:
        return (rows, columns) if self.table else (columns, rows)


def blocks_of(columns: int, block_size: int) -> int:
    return -(-columns // block_size)


def padded(columns: int, block_size: int) -> int:
    """Columns of whole blocks."""
    return blocks_of(columns, block_size) * block_size


def in_blocks(values: Tensor, block_size: int) -> Tensor:
    """[N, K] of any float dtype → float32 [N, blocks, block size]. What fills up a block repeats the row's last
    weight, so it changes neither scale nor offset.
    """
    missing = padded(values.shape[1], block_size) - values.shape[1]
    whole = torch.cat([values, values[:, -1:].expand(-1, missing)], dim=1) if missing else values
    return whole.float().reshape(len(values), -1, block_size)


def quantize(
    values: Tensor, bits: Literal[4, 8], block_size: int, dtype: Literal["float32", "float16"], name: str
) -> QuantizedTensor:
    """Round to nearest; only a few million elements at a time are converted to floats.

    values [N, K] of any float dtype; scales have the precision of `dtype`. Raises CheckpointError for values
    out of its range.
    """
    rows, columns = len(values), padded(values.shape[1], block_size)
    q = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, columns // block_size), np.float32)
    step = max(1, ROUNDED_AT_ONCE // columns)
    for start in range(0, rows, step):
        cut = slice(start, start + step)
        rounded, scale = _round(in_blocks(values[cut], block_size), bits, dtype, name)
        q[cut] = rounded.reshape(-1, columns).numpy()
        scales[cut] = scale.numpy()
    return QuantizedTensor(bits, block_size, q, scales)


def _round(blocks: Tensor, bits: int, dtype: str, name: str) -> tuple[Tensor, Tensor]:
    """blocks float32 [n, blocks, block size] → int8 of that shape, scales float32 [n, blocks]."""
    if bits == 8:
        scale = storable(blocks.abs().amax(dim=2) / 127, dtype, name)
        return _to_integers(blocks, scale, bits), scale
    # 16 values have one more negative than positive: the sign of the scale puts the largest element there.
    largest = blocks.gather(2, blocks.abs().argmax(dim=2, keepdim=True))[..., 0]
    scale = storable(largest / -8, dtype, name)
    return _to_integers(blocks, scale, bits), scale


def storable(scale: Tensor, dtype: str, name: str) -> Tensor:
    """Scales after rounding to their dtype; a block of zeros has scale 1.

    Subnormal numbers have coarse steps. Scales among them are rounded away from zero, so that the integers of a
    block's largest weights are within their limits.
    """
    kind: torch.dtype = getattr(torch, dtype)
    limits = torch.finfo(kind)
    step = limits.smallest_normal * limits.eps
    above = torch.copysign((scale.double().abs() / step).ceil() * step, scale.double())
    coarse = torch.where(scale.abs() < limits.smallest_normal, above, scale.double())
    stored = to_dtype(coarse, kind, name).float()
    return torch.where(stored == 0, torch.ones_like(stored), stored)


def _to_integers(blocks: Tensor, scale: Tensor, bits: int) -> Tensor:
    limit = 1 << (bits - 1)
    return (blocks / scale[..., None]).round().clamp(-limit, limit - 1).to(torch.int8)


def pack(q: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Two 4-bit integers per byte, the first in the low half, as ONNX stores them."""
    flat = np.ascontiguousarray(q).reshape(-1).view(np.uint8)
    low = np.bitwise_and(flat[0::2], np.uint8(0xF))
    packed: NDArray[np.uint8] = np.bitwise_or(low, np.left_shift(flat[1::2], np.uint8(4)))
    return packed


def renamed(node: ir.Node, op_type: str) -> str:
    return str(node.name).replace("Gemm", op_type)


def constant(graph: ir.Graph, name: str, values: list[int]) -> ir.Value:
    if name not in graph.initializers:
        tensor = ir.tensor(np.array(values, np.int64), name=name)
        graph.initializers.add(
            ir.Value(
                name=name,
                shape=ir.Shape((len(values),)),
                type=ir.TensorType(tensor.dtype),
                const_value=tensor,
            )
        )
    return graph.initializers[name]


def insert_behind(graph: ir.Graph, x: ir.Value, nodes: list[ir.Node]) -> None:
    """`nodes`, which read x, behind the node that makes it."""
    maker = x.producer()
    if maker is None:
        graph.insert_before(graph[0], nodes)
    else:
        graph.insert_after(maker, nodes)
