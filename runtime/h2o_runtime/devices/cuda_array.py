"""An array in a GPU's memory: it gives views of rows, and computes nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

ALIGNMENT = 256  # bytes: alignment of new arrays; TensorRT needs it for all inputs and outputs


def address_of(array: Any) -> int:
    """The address of a NumPy array's or a CudaArray's contents."""
    if isinstance(array, CudaArray):
        return array.address
    address: int = array.__array_interface__["data"][0]
    return address


class CudaArray:
    """C-contiguous. Views keep the memory alive that they refer to."""

    __slots__ = ("_owner", "address", "dtype", "shape")

    def __init__(self, address: int, shape: tuple[int, ...], dtype: DTypeLike, owner: object) -> None:
        self.address = address
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._owner = owner

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, rows: int | slice) -> CudaArray:
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                raise IndexError("rows on the GPU can be cut out, not skipped")
            shape = (max(stop - start, 0), *self.shape[1:])
            return CudaArray(self.address + start * row_bytes, shape, self.dtype, self._owner)
        index = rows + len(self) if rows < 0 else rows
        if not 0 <= index < len(self):
            raise IndexError(f"row {rows} of {len(self)}")
        return CudaArray(self.address + index * row_bytes, self.shape[1:], self.dtype, self._owner)

    def reshape(self, *shape: int) -> CudaArray:
        if math.prod(shape) != math.prod(self.shape):
            raise ValueError(f"{self.shape} does not fit {shape}")
        return CudaArray(self.address, shape, self.dtype, self._owner)

    def __repr__(self) -> str:
        return f"CudaArray({self.shape}, {self.dtype}, at {self.address:#x})"
