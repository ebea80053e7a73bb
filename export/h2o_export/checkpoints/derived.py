"""A checkpoint based on another one: the same model, files and identity, with other values in some
tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from h2o_export.checkpoints.checkpoint import Checkpoint
from h2o_export.tensors import Integers, QuantizedTensor
from h2o_runtime.bundles.manifest import EmbeddingSpec


@dataclass(frozen=True)
class DerivedCheckpoint(Checkpoint):
    """Everything comes from `original`, except what a subclass overrides."""

    original: Checkpoint

    @property
    def config_file(self) -> Path:
        return self.original.config_file

    def unused(self, used: Collection[str]) -> frozenset[str]:
        return self.original.unused(used)

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        self.original.check(tensors)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.original.tensor(name, shape)

    def integers(self, name: str) -> Integers | None:
        return self.original.integers(name)

    def blocks(self, name: str) -> QuantizedTensor | None:
        return self.original.blocks(name)

    def sha256(self) -> str:
        return self.original.sha256()

    def write_tokenizer(self, folder: Path) -> None:
        self.original.write_tokenizer(folder)

    @property
    def tokenizer_file(self) -> Path | None:
        return self.original.tokenizer_file

    @property
    def adapter_folder(self) -> Path | None:
        return self.original.adapter_folder

    @property
    def embedding(self) -> EmbeddingSpec:
        return self.original.embedding

    def transformers_config(self) -> Any:
        return self.original.transformers_config()
