"""Weights as floats of the model's dtype, without further nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor

from h2o_export.checkpoints import Checkpoint
from h2o_export.tensors import Integers, to_dtype
from h2o_export.weights import StoredTensor, WeightFile


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

    def keeps(self, found: Integers | None) -> bool:
        return False

    def nbytes(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * self.dtype.itemsize
