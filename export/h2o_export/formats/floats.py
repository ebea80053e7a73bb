"""Weights as floats of the model's dtype, without further nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor

from h2o_export.checkpoints import Checkpoint
from h2o_export.weights import StoredTensor, WeightFile
from h2o_runtime.errors import CheckpointError


@dataclass(frozen=True)
class Floats:
    """float32 or float16, like the activations."""

    name: str
    dtype: torch.dtype

    @property
    def block_size(self) -> None:
        return None

    def place(self, model: ir.Model, weight: ir.Value) -> tuple[ir.Value, ...]:
        return (weight,)

    def store(
        self, checkpoint: Checkpoint, name: str, shape: tuple[int, ...], file: WeightFile
    ) -> tuple[StoredTensor, ...]:
        return (file.add(self.rounded(checkpoint, name, shape)),)

    def rounded(self, checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Tensor:
        return to_dtype(checkpoint.tensor(name, shape), self.dtype, name)

    def nbytes(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * self.dtype.itemsize


def to_dtype(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Convert weights. NaN, or a value outside float16's range, raises an error."""
    converted = tensor.to(dtype)
    if not bool(torch.isfinite(converted).all()):
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"tensor '{name}' holds NaN or infinity where numbers should be: the checkpoint is damaged, or its "
                "training has failed; download it again"
            )
        raise CheckpointError(f"tensor '{name}' has values beyond float16's range; use `dtype=float32`")
    return converted
