"""A checkpoint whose files arrange a layer's matrices differently, presented as if each were a separate
matrix, under this exporter's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.architecture.arrangement import AS_HERE, halves
from h2o_export.architecture.config import ModelConfig
from h2o_export.checkpoints.checkpoint import Checkpoint
from h2o_export.checkpoints.derived import DerivedCheckpoint
from h2o_export.tensors import Integers, QuantizedTensor


def arranged(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint itself, if its files already hold every tensor under its own name."""
    if checkpoint.config.arrangement == AS_HERE:
        return checkpoint
    return ArrangedCheckpoint(checkpoint.path, checkpoint.source, checkpoint.config, checkpoint)


class ArrangedCheckpoint(DerivedCheckpoint):
    """See `ModelConfig.arrangement`."""

    def unused(self, used: Collection[str]) -> frozenset[str]:
        return self.original.unused({_stored_name(name, self.config) for name in used})

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        stored: dict[str, tuple[int, ...]] = {}
        for name, shape in tensors.items():
            place = _place(name, self.config)
            whole = shape if place is None else (place.whole_rows, *shape[1:])
            stored[_stored_name(name, self.config)] = whole
        self.original.check(stored)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        place = _place(name, self.config)
        if place is None:
            tensor = self.original.tensor(_stored_name(name, self.config), shape)
            less = self.config.arrangement.lessened(name)
            return tensor.float() + less if less else tensor
        whole = _stored_name(name, self.config)
        return place.rows(self.original.tensor(whole, (place.whole_rows, *shape[1:])))

    def integers(self, name: str) -> Integers | None:
        return self.original.integers(_stored_name(name, self.config))

    def blocks(self, name: str) -> QuantizedTensor | None:
        place = _place(name, self.config)
        whole = self.original.blocks(_stored_name(name, self.config))
        if place is None or whole is None:
            return whole

        def rows(values: NDArray[Any]) -> NDArray[Any]:
            taken: NDArray[Any] = place.rows(torch.from_numpy(values)).numpy()
            return taken

        offsets = None if whole.offsets is None else rows(whole.offsets)
        return replace(whole, q=rows(whole.q), scales=rows(whole.scales), offsets=offsets)


@dataclass(frozen=True)
class _Place:
    """Where a tensor is in the one that the files hold: `size` rows of `whole_rows`, from `start` on.

    paired_heads  heads whose rows are in pairs of neighbours; 0: they are not
    rotated       rows of a head that are
    order         where the files have each of the whole's rows; None: where it is here
    """

    whole_rows: int
    start: int
    size: int
    paired_heads: int
    rotated: int
    order: Tensor | None

    def rows(self, whole: Tensor) -> Tensor:
        own = slice(self.start, self.start + self.size)
        rows = whole[own if self.order is None else self.order[own]].contiguous()
        return halves(rows, self.paired_heads, self.rotated) if self.paired_heads else rows


def _place(name: str, config: ModelConfig) -> _Place | None:
    """None: the files hold the tensor by itself."""
    module, arrangement = name.rpartition(".")[0], config.arrangement
    modules, paired = arrangement.split(arrangement.holder(module)), arrangement.paired(module)
    if len(modules) == 1 and not paired:
        return None
    sizes = [config.projection_rows(one) for one in modules]
    at = modules.index(module)
    heads = sizes[at] // config.head_size if paired else 0
    order = config.file_order(arrangement.holder(module))
    return _Place(sum(sizes), sum(sizes[:at]), sizes[at], heads, config.rotated_size, order)


def _stored_name(name: str, config: ModelConfig) -> str:
    """Of the files' tensor that holds it."""
    module, dot, kind = name.rpartition(".")
    return config.arrangement.there(config.arrangement.holder(module) + dot + kind)
