"""Weights as plain numbers of the model's dtype: nothing stands for them but they themselves."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor

from h2o_export.checkpoints import Checkpoint
from h2o_export.weights import StoredTensor, WeightFile
from h2o_runtime.errors import CheckpointError


@dataclass(frozen=True)
class Floats:
    """float32 or float16, as the activations are."""

    name: str
    dtype: torch.dtype

    def place(self, model: ir.Model, weight: ir.Value) -> tuple[ir.Value, ...]:
        return (weight,)

    def store(
        self, checkpoint: Checkpoint, name: str, shape: tuple[int, ...], file: WeightFile
    ) -> tuple[StoredTensor, ...]:
        return (file.add(to_dtype(checkpoint.tensor(name, shape), self.dtype, name)),)


def to_dtype(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Convert weights; a value that is no number, or leaves float16's range, is an error, not a silent one."""
    converted = tensor.to(dtype)
    if not bool(torch.isfinite(converted).all()):
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"tensor '{name}' holds NaN or infinity where numbers should be: the checkpoint is damaged, or its "
                "training has failed; download it again"
            )
        raise CheckpointError(
            f"tensor '{name}' has values beyond float16's range; export with --dtype float32"
        )
    return converted
