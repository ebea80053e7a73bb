"""A checkpoint with the weights that a bundle of it holds: it tells errors from what the weights have lost."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from h2o_export.checkpoints import Checkpoint
from h2o_export.checkpoints.derived import DerivedCheckpoint
from h2o_export.dense.graphs import tensor_format
from h2o_export.formats import MatrixFormats


@dataclass(frozen=True)
class RoundedCheckpoint(DerivedCheckpoint):
    """Matrices of `original` rounded as `formats` store them; the rest as it is."""

    formats: MatrixFormats

    @classmethod
    def of(cls, original: Checkpoint, formats: MatrixFormats) -> RoundedCheckpoint:
        return cls(original.path, original.source, original.config, original, formats)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        format = tensor_format(name, shape, self.formats)
        return format.rounded(self.original, name, shape) if format else self.original.tensor(name, shape)
