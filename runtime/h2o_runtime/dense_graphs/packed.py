"""A PackedProduct's matrices as its inputs: plugins/kernels/include/h2o/products.h has the layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from h2o_plugins import load_cpu_kernels
from h2o_runtime.dense_graphs.matrices import (
    FloatProduct,
    Matrix,
    QuantizedProduct,
    float_products,
    floats,
    quantized_products,
)
from h2o_runtime.names import DensePrecision

BLOCKS = range(16, 257, 16)  # block sizes of integers
PANEL = 16  # columns
STEP = 16  # K of float matrices is a multiple of this
LINE = 64  # bytes: loads across two cache lines take twice as long

Product: TypeAlias = QuantizedProduct | FloatProduct


def pack(
    q: NDArray[np.int8], bits: Literal[4, 8], block_size: int, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """int8 [N, K], with contiguous rows or columns → uint8 [N / 16, rounded up, K · 16 · bits / 8].

    out: the result's memory, [bytes].
    """
    if out is None:
        out = np.empty(packed_bytes(q, bits), np.uint8)
    load_cpu_kernels().pack_integers(q, bits, block_size, out)
    return out.reshape(-(-len(q) // PANEL), -1)


def packed_bytes(q: NDArray[np.int8], bits: int) -> int:
    """Bytes of q [N, K] when it is packed."""
    inputs: int = q.shape[1]
    return -(-len(q) // PANEL) * PANEL * inputs * bits // 8


def pack_scales(scales: NDArray[Any]) -> NDArray[np.float32]:
    """[N, K / block] → float32 [N / 16, rounded up, K / block, 16]. Offsets have the same layout."""
    scales = _whole_panels(scales)
    panels = scales.reshape(-1, PANEL, scales.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(panels, dtype=np.float32)


def pack_floats(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [N, K] → [N / 16, rounded up, K, 16]."""
    matrix = _whole_panels(matrix)
    return np.ascontiguousarray(matrix.reshape(-1, PANEL, matrix.shape[1]).transpose(0, 2, 1))


def pack_bfloat16(matrix: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 [N, K] → bfloat16 [N / 16, rounded up, K / 2, 16, 2], to the nearest, ties to even."""
    bits = _whole_panels(np.ascontiguousarray(matrix)).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1) >> 16).astype(np.uint16)
    pairs = rounded.view(np.uint32).reshape(-1, PANEL, matrix.shape[1] // 2).transpose(0, 2, 1)
    return np.ascontiguousarray(pairs).view(np.uint16).reshape(len(pairs), -1, PANEL, 2)


def _whole_panels(array: NDArray[Any]) -> NDArray[Any]:
    return np.pad(array, ((0, -len(array) % PANEL), (0, 0))) if len(array) % PANEL else array


@dataclass(frozen=True)
class Kind:
    """The common properties of a node's matrices. 32 and 16 bits are floats, without blocks."""

    bits: int
    block: int
    offsets: bool

    @classmethod
    def of(cls, product: Product) -> Kind:
        if isinstance(product, FloatProduct):
            return cls(product.bits, 0, False)
        return cls(product.bits, product.block_size, product.offset is not None)


@dataclass(frozen=True)
class Packed:
    """Matrices one after the other. Floats have no scales."""

    inputs: int  # K
    outputs: tuple[int, ...]  # N of each
    weights: NDArray[np.uint8]
    scales: NDArray[np.float32] | None
    offsets: NDArray[np.float32] | None

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Those that there are, by their names."""
        given = {"weights": self.weights, "scales": self.scales, "offsets": self.offsets}
        return {name: array for name, array in given.items() if array is not None}


# Matrices of one kind, of initializers by their names with data in files below a folder, to what a node is given.
Pack: TypeAlias = Callable[[Sequence[Product], Mapping[str, Any], Path], Packed]


def name_of(matrices: Sequence[Product]) -> str:
    """Of a node's matrices together: the names of all, in their order."""
    return "+".join(matrix.weight for matrix in matrices)


def takes(graph: Any) -> bool:
    """Whether a GraphProto's products can be native: kernels support their block sizes."""
    return all(product.block_size in BLOCKS for product in quantized_products(graph))


def products(graph: Any, precision: DensePrecision = "float32") -> list[Product]:
    """The integer products of a GraphProto that can be native, if all can, and its float products that
    can.
    """
    inputs = {tensor.name: tensor.dims[-1] for tensor in graph.initializer if tensor.dims}
    of_floats = [
        product for product in float_products(graph, precision) if inputs[product.weight] % STEP == 0
    ]
    return [*quantized_products(graph), *of_floats]


def pack_matrices(matrices: Sequence[Product], tensors: Mapping[str, Any], folder: Path) -> Packed:
    """Matrices of one kind. `tensors` are initializers by name, whose data are in files below `folder`."""
    quantized = [matrix for matrix in matrices if isinstance(matrix, QuantizedProduct)]
    if quantized:
        return _pack_integers(quantized, tensors, folder)
    return _pack_floats([matrix for matrix in matrices if isinstance(matrix, FloatProduct)], tensors, folder)


def aligned(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays of one dimension and dtype, one after the other, starting at a cache line."""
    out = _aligned_bytes(sum(array.nbytes for array in arrays)).view(arrays[0].dtype)
    return np.concatenate(arrays, out=out)


def _pack_integers(products: Sequence[QuantizedProduct], tensors: Mapping[str, Any], folder: Path) -> Packed:
    read = [Matrix.read(product, tensors, folder) for product in products]
    bits, block_size = products[0].bits, products[0].block_size
    stops = np.cumsum([packed_bytes(matrix.q, bits) for matrix in read])
    weights = _aligned_bytes(stops[-1])
    for matrix, place in zip(read, np.split(weights, stops[:-1]), strict=True):
        pack(matrix.q, bits, block_size, place)  # in place: a copy of all weights would take as long again
    offsets = [
        floats(tensors[node.offset.input[1]], folder).T for node in products if node.offset is not None
    ]
    return Packed(
        read[0].q.shape[1],
        tuple(len(matrix.q) for matrix in read),
        weights,
        aligned([pack_scales(matrix.scales).reshape(-1) for matrix in read]),
        aligned([pack_scales(values).reshape(-1) for values in offsets]) if offsets else None,
    )


def _pack_floats(products: Sequence[FloatProduct], tensors: Mapping[str, Any], folder: Path) -> Packed:
    pack_some = pack_floats if products[0].bits == 32 else pack_bfloat16
    read = [floats(tensors[product.weight], folder) for product in products]
    packed = [pack_some(matrix.astype(np.float32, copy=False)).reshape(-1).view(np.uint8) for matrix in read]
    return Packed(read[0].shape[1], tuple(len(matrix) for matrix in read), aligned(packed), None, None)


def _aligned_bytes(nbytes: int) -> NDArray[np.uint8]:
    """Memory that starts at a cache line."""
    memory = np.empty(nbytes + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + nbytes]
