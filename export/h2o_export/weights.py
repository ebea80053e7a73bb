"""Writing weight files: tensors one after the other, each converted, aligned and hashed as it streams by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor

from h2o_runtime.manifest import FileSpec

ALIGNMENT = 4096  # a page, so that readers can map each tensor by itself


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies: `file` is relative to the folder of the ONNX graphs."""

    file: str
    offset: int
    length: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def bind(self, value: ir.Value, folder: Path) -> None:
        """Make `value`, an initializer without data, refer to this tensor. Checks dtype and shape."""
        assert value.shape is not None
        assert tuple(value.shape) == self.shape, (value.name, value.shape, self.shape)
        value.const_value = ir.ExternalTensor(
            self.file,
            self.offset,
            self.length,
            _IR_DTYPES[self.dtype],
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
        self._write(bytes(-self._size % ALIGNMENT))
        offset = self._size
        self._write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        return StoredTensor(self.file, offset, self._size - offset, tensor.dtype, tuple(tensor.shape))

    def spec(self) -> FileSpec:
        return FileSpec(bytes=self._size, sha256=self._digest.hexdigest())

    def _write(self, data: bytes | memoryview) -> None:
        self._stream.write(data)
        self._digest.update(data)
        self._size += len(data)
