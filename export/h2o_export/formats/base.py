"""What a weight format is: how a matrix lies in weight files, and what stands for it in a dense graph."""

from __future__ import annotations

from typing import Protocol

import onnx_ir as ir
from torch import Tensor

from h2o_export.checkpoints import Checkpoint
from h2o_export.weights import StoredTensor, WeightFile


class WeightFormat(Protocol):
    """A way to keep weight matrices. What is no matrix, norms and biases, is floats in any of them."""

    @property
    def name(self) -> str:
        """As `FORMATS` has it."""

    @property
    def block_size(self) -> int | None:
        """Weights that share a scale; None for floats."""

    def place(self, model: ir.Model, weight: ir.Value) -> tuple[ir.Value, ...]:
        """Put into a graph what stands for `weight`, an initializer [out, in] that its nodes read.

        Called once a traced graph. Returns the initializers, new ones or `weight` itself, that the tensors of
        `store` are bound to, in the same order.
        """

    def store(
        self, checkpoint: Checkpoint, name: str, shape: tuple[int, ...], file: WeightFile
    ) -> tuple[StoredTensor, ...]:
        """Write the checkpoint's tensor `name` to `file`, once a layer. Raises CheckpointError."""

    def rounded(self, checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Tensor:
        """The values that `store` keeps, as floats: what a bundle without any further error computes with."""

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """What a matrix of that shape takes on disk."""
