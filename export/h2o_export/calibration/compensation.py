"""Rounds layer after layer in one pass over some texts, a matrix when its input is known.

So later matrices compensate for the errors of earlier ones. One layer of floats is in memory at a time, as
everywhere in an export, and two of integers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from h2o_export.calibration.rounding import Moments, compensate, windows
from h2o_export.checkpoints import Checkpoint
from h2o_export.checkpoints.derived import DerivedCheckpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.formats import MatrixFormats
from h2o_export.formats.blocks import Blocks
from h2o_export.reference.rounded import RoundedCheckpoint
from h2o_export.reference.streamed_model import StreamedModel
from h2o_export.tensors import QuantizedTensor

TEXTS = 4  # of calibration.text
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class CompensatedCheckpoint(DerivedCheckpoint):
    """`original`, which also provides the matrices of layers in blocks of integers.

    They are computed when first requested. Layers are requested in order; those before the last are dropped.
    """

    rounding: LayerRounding

    @classmethod
    def of(
        cls,
        original: Checkpoint,
        formats: MatrixFormats,
        names: Collection[str],
        texts: Sequence[Sequence[int]],
    ) -> CompensatedCheckpoint:
        """`names` are the matrices to round; `texts` are token ids, and each is a separate text."""
        return LayerRounding(original, formats, names, texts).checkpoint

    def blocks(self, name: str) -> QuantizedTensor | None:
        return self.rounding.blocks(name) or self.original.blocks(name)


@dataclass(frozen=True)
class _AsMade(RoundedCheckpoint):
    """Matrices as they are rounded; those that wait for their input are floats."""

    original: CompensatedCheckpoint

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if self.original.rounding.waits(name):
            return self.original.tensor(name, shape)
        return super().tensor(name, shape)


class LayerRounding:
    """Rounds one layer after the other; knows the residual stream of the texts before the next one."""

    def __init__(
        self,
        original: Checkpoint,
        formats: MatrixFormats,
        names: Collection[str],
        texts: Sequence[Sequence[int]],
    ) -> None:
        self.checkpoint = CompensatedCheckpoint(
            original.path, original.source, original.config, original, self
        )
        self._formats = formats
        self._shapes = {
            name: shape for name, shape in checkpoint_tensors(original.plan).items() if name in names
        }
        layers = original.config.blocks or tuple((layer,) for layer in range(original.config.layers))
        self._layers = {number: layer for layer, numbers in enumerate(layers) for number in numbers}
        self._made: dict[int, dict[str, QuantizedTensor]] = {}  # by layer and name
        self._input: Tensor | None = None
        self._moments: list[Moments] = []  # of the input
        self._model = StreamedModel(_AsMade.of(self.checkpoint, formats), torch.float32)
        self._model.watch(self._round, refill=True)
        self._states = self._model.embed(texts)
        self._next = 0

    def waits(self, name: str) -> bool:
        """Whether it is of the layer in work, and its input is not known yet."""
        return name in self._shapes and name not in self._made[self._next - 1]

    def blocks(self, name: str) -> QuantizedTensor | None:
        """None too for experts, which transformers multiplies as one tensor: they are rounded to nearest."""
        found = _LAYER.match(name)
        if found is None or name not in self._shapes:
            return None
        layer = self._layers[int(found[1])]
        while self._next <= layer:
            self._round_layer(self._next)
        return self._made[layer].get(name)

    def _round_layer(self, layer: int) -> None:
        self._made.pop(layer - 2, None)
        self._made[layer] = {}
        self._next = layer + 1
        self._states = self._model.layer(layer, self._states)
        self._input, self._moments = None, []

    def _round(self, name: str, x: Tensor) -> None:
        """`name` is about to multiply x [..., K]. Matrices with the same x follow each other."""
        if name not in self._shapes:
            return
        form = self._formats.of_layers(name)
        assert isinstance(form, Blocks)
        if x is not self._input:
            self._input, self._moments = x, windows(even(x.reshape(-1, x.shape[-1])), form.block_size)
        weights = self.checkpoint.tensor(name, self._shapes[name]).float()
        self._made[self._next - 1][name] = compensate(
            weights, self._moments, form.bits, form.block_size, form.dtype, name
        )


def even(rows: Tensor) -> Tensor:
    """Rows [n, K] scaled to at most the median norm.

    A text's first token has inputs a thousand times as large as all others: weights would be rounded for it
    alone.
    """
    length = rows.norm(dim=1, keepdim=True)
    shorter: Tensor = rows * (length.median() / length.clamp(min=1e-10)).clamp(max=1)
    return shorter
