"""Writes weight files: tensors one after the other, each converted, aligned and hashed while it is
written.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_runtime.bundles.manifest import FileSpec

ALIGNMENT = 4096  # a page, so that readers can map each tensor separately


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor is stored: `file` is relative to the folder of the ONNX graphs."""

    file: str
    offset: int
    length: int
    dtype: ir.DataType
    shape: tuple[int, ...]

    def bind(self, value: ir.Value, folder: Path) -> None:
        """Make `value`, an initializer without data, refer to this tensor. Checks dtype and shape."""
        assert value.shape is not None
        assert tuple(value.shape) == self.shape, (value.name, value.shape, self.shape)
        value.const_value = ir.ExternalTensor(
            self.file,
            self.offset,
            self.length,
            self.dtype,
            shape=ir.Shape(self.shape),
            name=value.name or "",
            base_dir=folder,
        )


_IR_DTYPES = {torch.float32: ir.DataType.FLOAT, torch.float16: ir.DataType.FLOAT16}


@dataclass
class WeightFile:
    """A file under construction; use as a context manager."""

    folder: Path  # of the ONNX graphs
    file: str  # relative to it
    _digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    _size: int = 0

    def __enter__(self) -> WeightFile:
        path = self.folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("wb")
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.close()

    def add(self, tensor: Tensor) -> StoredTensor:
        data = tensor.contiguous().flatten().view(torch.uint8).numpy()
        return self.add_array(data, _IR_DTYPES[tensor.dtype], tuple(tensor.shape))

    def add_array(self, data: NDArray[Any], dtype: ir.DataType, shape: tuple[int, ...]) -> StoredTensor:
        """The bytes of `data`, C-contiguous, as a tensor of another dtype or shape, such as packed int4."""
        self._write(bytes(-self._size % ALIGNMENT))
        offset = self._size
        self._write(data.reshape(-1).view(np.uint8).data)
        return StoredTensor(self.file, offset, self._size - offset, dtype, shape)

    def spec(self) -> FileSpec:
        return FileSpec(bytes=self._size, sha256=self._digest.hexdigest())

    def _write(self, data: bytes | memoryview) -> None:
        self._stream.write(data)
        self._digest.update(data)
        self._size += len(data)
