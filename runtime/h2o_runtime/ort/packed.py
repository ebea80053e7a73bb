"""A PackedProduct's matrices as its inputs: plugins/kernels/include/h2o/products.h has the layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.names import DensePrecision
from h2o_runtime.ort.matrices import (
    FloatProduct,
    Matrix,
    QuantizedProduct,
    float_products,
    floats,
    quantized_products,
)
from h2o_runtime.ort.panels import pack, pack_bfloat16, pack_floats, pack_scales

BLOCKS = range(16, 257, 16)  # block sizes of integers
STEP = 16  # K of float matrices is a multiple of this
LINE = 64  # bytes: loads across two cache lines take twice as long

Product: TypeAlias = QuantizedProduct | FloatProduct


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
    return "+".join(one.weight for one in matrices)


def takes(graph: Any) -> bool:
    """Whether a GraphProto's products can be native: kernels support their block sizes."""
    return all(product.block_size in BLOCKS for product in quantized_products(graph))


def products(graph: Any, precision: DensePrecision = "float32") -> list[Product]:
    """The integer products of a GraphProto that can be native, if all can, and its float products that
    can.
    """
    inputs = {tensor.name: tensor.dims[-1] for tensor in graph.initializer if tensor.dims}
    of_floats = [one for one in float_products(graph, precision) if inputs[one.weight] % STEP == 0]
    return [*quantized_products(graph), *of_floats]


def pack_matrices(matrices: Sequence[Product], tensors: Mapping[str, Any], folder: Path) -> Packed:
    """Matrices of one kind. `tensors` are initializers by name, whose data are in files below `folder`."""
    made = [_pack(product, tensors, folder) for product in matrices]
    return Packed(
        made[0].inputs,
        tuple(n for one in made for n in one.outputs),
        aligned([one.weights for one in made]),
        _together([one.scales for one in made if one.scales is not None]),
        _together([one.offsets for one in made if one.offsets is not None]),
    )


def aligned(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays of one dimension and dtype, one after the other, starting at a cache line."""
    nbytes = sum(array.nbytes for array in arrays)
    memory = np.empty(nbytes + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    out = memory[start : start + nbytes].view(arrays[0].dtype)
    return np.concatenate(arrays, out=out)


def _pack(product: Product, tensors: Mapping[str, Any], folder: Path) -> Packed:
    if isinstance(product, FloatProduct):
        matrix = floats(tensors[product.weight], folder)
        pack_some = pack_floats if product.bits == 32 else pack_bfloat16
        weights = pack_some(matrix.astype(np.float32, copy=False)).reshape(-1).view(np.uint8)
        return Packed(matrix.shape[1], (matrix.shape[0],), weights, None, None)
    read = Matrix.read(product, tensors, folder)
    offsets = None if product.offset is None else floats(tensors[product.offset.input[1]], folder).T
    return Packed(
        read.q.shape[1],
        (read.q.shape[0],),
        pack(read.q, product.bits, product.block_size).reshape(-1),
        pack_scales(read.scales).reshape(-1),
        None if offsets is None else pack_scales(offsets).reshape(-1),
    )


def _together(arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32] | None:
    return aligned(arrays) if arrays else None
