"""A checkpoint with the weights that a bundle of it holds: it tells errors from what the weights have lost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from h2o_export.checkpoints import Checkpoint
from h2o_export.dense import tensor_format
from h2o_export.formats import MatrixFormats


@dataclass(frozen=True)
class RoundedCheckpoint(Checkpoint):
    """Matrices of `original` rounded as `formats` store them; the rest as it is."""

    original: Checkpoint
    formats: MatrixFormats

    @classmethod
    def of(cls, original: Checkpoint, formats: MatrixFormats) -> RoundedCheckpoint:
        return cls(original.path, original.source, original.config, original, formats)

    @classmethod
    def takes(cls, path: Path) -> bool:
        return False

    @classmethod
    def open(cls, path: Path, source: str) -> RoundedCheckpoint:
        raise NotImplementedError("a rounded checkpoint is made of another one")

    @property
    def config_file(self) -> Path:
        return self.original.config_file

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        format = tensor_format(name, shape, self.formats)
        return format.rounded(self.original, name, shape) if format else self.original.tensor(name, shape)

    def sha256(self) -> str:
        return self.original.sha256()

    def write_tokenizer(self, folder: Path) -> None:
        self.original.write_tokenizer(folder)

    def transformers_config(self) -> Any:
        return self.original.transformers_config()
