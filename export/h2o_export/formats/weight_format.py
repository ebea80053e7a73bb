"""What a weight format is: how weight files store a matrix, and which nodes of a dense graph read it."""

from __future__ import annotations

from typing import Protocol

import onnx_ir as ir
from torch import Tensor

from h2o_export.checkpoints import Checkpoint
from h2o_export.tensors import Integers
from h2o_export.weights import StoredTensor, WeightFile


class WeightFormat(Protocol):
    """A way to store weight matrices. Norms, biases and other non-matrices are always floats."""

    @property
    def name(self) -> str:
        """Its name in `FORMATS`."""

    @property
    def block_size(self) -> int | None:
        """Number of weights that share a scale; None for floats."""

    def place(self, model: ir.Model, weight: ir.Value) -> tuple[ir.Value, ...]:
        """Add to a graph the nodes that replace `weight`, an initializer [out, in] that its nodes read.
        Called once per traced graph.

        Returns the initializers, new ones or `weight` itself, for the tensors that `store` writes, in the
        same order.
        """

    def store(
        self, checkpoint: Checkpoint, name: str, shape: tuple[int, ...], file: WeightFile
    ) -> tuple[StoredTensor, ...]:
        """Write the checkpoint's tensor `name` to `file`, once a layer. Raises CheckpointError."""

    def keeps(self, found: Integers | None) -> bool:
        """Whether integers of a checkpoint are stored unchanged."""

    def rounded(self, checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Tensor:
        """The values that `store` writes, as floats: what an exact bundle with these weights computes
        with.
        """

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes on disk of a matrix of that shape."""
