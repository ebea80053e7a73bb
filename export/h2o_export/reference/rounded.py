"""A checkpoint with the weights that its bundle holds: separates errors from the rounding of weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from h2o_export.checkpoints import Checkpoint
from h2o_export.checkpoints.derived import DerivedCheckpoint
from h2o_export.dense.matrices import tensor_format
from h2o_export.formats import MatrixFormats


@dataclass(frozen=True)
class RoundedCheckpoint(DerivedCheckpoint):
    """Matrices of `original` rounded as `formats` store them; other tensors unchanged."""

    formats: MatrixFormats

    @classmethod
    def of(cls, original: Checkpoint, formats: MatrixFormats) -> RoundedCheckpoint:
        return cls(original.path, original.source, original.config, original, formats)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        format = tensor_format(name, shape, self.formats)
        return format.rounded(self.original, name, shape) if format else self.original.tensor(name, shape)
