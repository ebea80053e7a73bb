"""Weights as 4-bit integers, with a scale and an offset for each block of a row.

A block's offset adds a multiple of the sum of the block's inputs: x · (s q + m) = s (x · q) + m Σ x. So the
graph multiplies the block sums of the activations with a small matrix of offsets. The product with integers
is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.formats.blocks import Blocks, blocks_of, constant, in_blocks, insert_behind, renamed, storable
from h2o_export.tensors import Integers, QuantizedTensor, to_dtype
from h2o_export.weights import StoredTensor, WeightFile

MIDDLE, STEPS = 8, 15  # integers are from -8 to 7


@dataclass(frozen=True)
class OffsetBlocks(Blocks):
    """Blocks of a matrix [in, out], with offsets [in / block, out] of the graph's dtype beside the scales.

    The layout of GGUF's Q4_1 and Q4_K, and of AWQ and GPTQ with zeros.
    """

    @property
    def name(self) -> str:
        return f"{super().name}+offset"

    def place(self, model: ir.Model, weight: ir.Value) -> tuple[ir.Value, ...]:
        assert weight.shape is not None
        rows, columns = (int(size) for size in weight.shape.numpy())
        shape = ir.Shape((blocks_of(columns, self.block_size), rows))
        offsets = ir.Value(name=_offsets(weight), shape=shape, type=ir.TensorType(self._floats))
        model.graph.initializers.add(offsets)
        return *super().place(model, weight), offsets

    def keeps(self, found: Integers | None) -> bool:
        return found is not None and super().keeps(replace(found, offsets=False))

    def nbytes(self, shape: tuple[int, ...]) -> int:
        return super().nbytes(shape) + self._floats_nbytes(shape)

    def _of_this_kind(self, tensor: QuantizedTensor) -> QuantizedTensor | None:
        return tensor

    def _write(self, found: QuantizedTensor, file: WeightFile) -> tuple[StoredTensor, ...]:
        offsets = np.zeros_like(found.scales) if found.offsets is None else found.offsets
        return *super()._write(found, file), self._write_floats(offsets, file)

    def _quantize(self, values: Tensor, name: str) -> QuantizedTensor:
        """Between the minimum and maximum of each block; one value alone is an offset, with integers of zero."""
        blocks = in_blocks(values, self.block_size)
        least, highest = blocks.amin(dim=2), blocks.amax(dim=2)
        scales = storable((highest - least) / STEPS, self.dtype, name)
        middle = torch.where(highest == least, least, least + MIDDLE * scales)
        offsets = to_dtype(middle, getattr(torch, self.dtype), name).float()
        q = ((blocks - offsets[..., None]) / scales[..., None]).round().clamp(-MIDDLE, STEPS - MIDDLE)
        found: NDArray[np.int8] = q.to(torch.int8).reshape(len(values), -1).numpy()
        return QuantizedTensor(self.bits, self.block_size, found, scales.numpy(), offsets.numpy())

    def _corrected(self, graph: ir.Graph, gemm: ir.Node, product: ir.Value) -> list[ir.Node]:
        x, weight = gemm.inputs[:2]
        assert x is not None
        assert weight is not None
        sums = self._block_sums(graph, x)
        return [
            ir.node(
                "Gemm", [sums, graph.initializers[_offsets(weight)], product], name=renamed(gemm, "Offsets")
            )
        ]

    def _block_sums(self, graph: ir.Graph, x: ir.Value) -> ir.Value:
        """x [n, K] → [n, K / block size], shared by all products that read x."""
        name = f"{x.name}/blocks"
        for user, _ in x.uses():
            if user.name == name:
                ((summed, _),) = user.outputs[0].uses()
                return summed.outputs[0]
        shape = constant(graph, f"blocks_of_{self.block_size}", [0, -1, self.block_size])
        blocks = ir.node("Reshape", [x, shape], name=name)
        last = constant(graph, "last_of_blocks", [2])
        sums = ir.node("ReduceSum", [blocks.outputs[0], last], {"keepdims": 0}, name=f"{x.name}/sums")
        for node in (blocks, sums):
            node.outputs[0].name = node.name
        insert_behind(graph, x, [blocks, sums])
        return sums.outputs[0]


def _offsets(weight: ir.Value) -> str:
    return f"{weight.name}.offsets"
