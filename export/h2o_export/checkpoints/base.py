"""What the exporter asks of a checkpoint, whatever its files are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from h2o_export.architecture.config import ModelConfig

if TYPE_CHECKING:
    from h2o_export.formats.quantized import QuantizedTensor


@dataclass(frozen=True)
class Checkpoint(ABC):
    """An opened checkpoint. No tensor is in memory until `tensor` is called.

    path    the folder or file that it is read from
    source  what the user named: a path or a hub name

    Tensors go by their names in transformers, whatever the files call them. A kind that holds weights in a
    quantized form may hand them out in that form too: weight formats are given the checkpoint and a name, and
    take what they can use.
    """

    path: Path
    source: str
    config: ModelConfig

    @property
    @abstractmethod
    def config_file(self) -> Path:
        """Where the configuration was read from, for errors about it."""

    def unused(self, used: Collection[str]) -> frozenset[str]:
        """Tensors that its files hold beside those `used`, by their own names: none is left out unseen."""
        return frozenset()

    @abstractmethod
    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor in a float dtype. Raises CheckpointError where it is missing or of another shape."""

    def blocks(self, name: str) -> QuantizedTensor | None:
        """A matrix as the files hold it in blocks of small integers, None where they do not."""
        return None

    @abstractmethod
    def sha256(self) -> str:
        """Identity of configuration and weights."""

    @abstractmethod
    def write_tokenizer(self, folder: Path) -> None:
        """Put the tokenizer's files, as the runtime reads them, into `folder`."""

    @abstractmethod
    def transformers_config(self) -> Any:
        """The configuration of the same model as transformers has it; raises what transformers raises."""


class CheckpointInFiles(Checkpoint):
    """A kind of files that people have. To add one is a class, and its place in `checkpoints.KINDS`."""

    @classmethod
    @abstractmethod
    def takes(cls, path: Path) -> bool:
        """Whether what lies at `path`, which exists, is of this kind."""

    @classmethod
    @abstractmethod
    def open(cls, path: Path, source: str) -> Checkpoint:
        """Raises CheckpointError for missing or broken files, UnsupportedModelError for an unknown model."""
