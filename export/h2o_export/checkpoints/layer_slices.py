"""Checkpoints with one table of the layers' own embeddings, and one matrix that projects to them, of all layers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from h2o_export.checkpoints.checkpoint import Checkpoint
from h2o_export.checkpoints.derived import DerivedCheckpoint
from h2o_export.checkpoints.safetensors import SafetensorsCheckpoint
from h2o_runtime.errors import CheckpointError

OF_LAYER = re.compile(r"model\.layers\.(\d+)\.((embed_tokens_per_layer|per_layer_model_projection)\.weight)")
TABLE = "embed_tokens_per_layer"


@dataclass(frozen=True)
class LayerSlices(DerivedCheckpoint):
    """Each layer's columns of the table, and rows of the matrix, as if they were by themselves."""

    files: SafetensorsCheckpoint  # with both; `original` presents other tensors of theirs

    def unused(self, used: Collection[str]) -> frozenset[str]:
        return self.original.unused({_whole(name) for name in used})

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        stored = {}
        for name, shape in tensors.items():
            place, layers = OF_LAYER.fullmatch(name), self.config.layers
            if place is not None:
                rows, columns = shape
                shape = (rows, layers * columns) if place[3] == TABLE else (layers * rows, columns)
            stored[_whole(name)] = shape
        self.original.check(stored)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        place = OF_LAYER.fullmatch(name)
        if place is None:
            return self.original.tensor(name, shape)
        table = place[3] == TABLE
        size = shape[1 if table else 0]
        cut = slice(int(place[1]) * size, (int(place[1]) + 1) * size)
        rows = self.files.read(_whole(name), (slice(None), cut) if table else (cut,))
        if tuple(rows.shape) != shape:
            raise CheckpointError(
                f"{self.source}: layer {place[1]} has a part of '{_whole(name)}' of shape {list(rows.shape)}, but "
                f"config.json implies {list(shape)}"
            )
        return rows


def with_layer_slices(checkpoint: Checkpoint, files: Checkpoint) -> Checkpoint:
    """The checkpoint itself, where layers have no embeddings of their own, or its files are sliced already."""
    if checkpoint.config.layer_embedding is None or not isinstance(files, SafetensorsCheckpoint):
        return checkpoint
    return LayerSlices(checkpoint.path, checkpoint.source, checkpoint.config, checkpoint, files)


def _whole(name: str) -> str:
    """The files' tensor with this one in it."""
    place = OF_LAYER.fullmatch(name)
    return name if place is None else f"model.{place[2]}"
