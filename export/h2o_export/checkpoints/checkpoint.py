"""The interface between the exporter and checkpoints of any kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from h2o_export.architecture.config import ModelConfig
from h2o_export.plan import Plan
from h2o_export.tensors import Integers, QuantizedTensor
from h2o_runtime.bundles.manifest import EmbeddingSpec


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

    @cached_property
    def plan(self) -> Plan:
        """Of its layers. Raises UnsupportedModelError."""
        return Plan.of(self.config)

    @property
    @abstractmethod
    def config_file(self) -> Path:
        """The source of the configuration, for error messages."""

    def unused(self, used: Collection[str]) -> frozenset[str]:
        """Tensors in its files besides those `used`, by their own names, so that none is ignored silently."""
        return frozenset()

    @abstractmethod
    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        """Raises CheckpointError if one of them is missing or has another shape. Reads only the files' headers."""

    @abstractmethod
    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor in a float dtype. Raises CheckpointError if it is missing or has another shape."""

    def integers(self, name: str) -> Integers | None:
        """What a matrix is in the files; None if they hold floats."""
        found = self.blocks(name)
        return None if found is None else Integers(found.bits, found.offsets is not None, found.block_size)

    def blocks(self, name: str) -> QuantizedTensor | None:
        """A matrix in the blocks of small integers that the files hold; None if they hold floats."""
        return None

    @abstractmethod
    def sha256(self) -> str:
        """Identity of configuration and weights."""

    @abstractmethod
    def write_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer's files into `folder`, in the format that the runtime reads."""

    @property
    def tokenizer_file(self) -> Path | None:
        """The published tokenizer.json; None: `write_tokenizer` made one of something else."""
        return None

    @property
    def adapter_folder(self) -> Path | None:
        """Of the adapter that is merged into the weights of its files."""
        return None

    @property
    def embedding(self) -> EmbeddingSpec:
        """How the model pools hidden states to an embedding."""
        return EmbeddingSpec()

    @abstractmethod
    def transformers_config(self) -> Any:
        """transformers' configuration of the same model; raises what transformers raises."""


class CheckpointInFiles(Checkpoint):
    """A kind of checkpoint files. A new kind is a class and its place in `checkpoints.KINDS`."""

    @classmethod
    @abstractmethod
    def takes(cls, path: Path) -> bool:
        """Whether the existing `path` is of this kind."""

    @classmethod
    @abstractmethod
    def open(cls, path: Path, source: str) -> Checkpoint:
        """Raises CheckpointError for missing or broken files, UnsupportedModelError for an unknown model."""
