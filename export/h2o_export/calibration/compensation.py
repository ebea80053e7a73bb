"""Rounds layer after layer, on the activations that the rounded earlier layers produce for some texts.

So later layers compensate for the errors of earlier ones. One layer of floats is in memory at a time, as
everywhere in an export, and two of integers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from h2o_export.calibration.rounding import compensate
from h2o_export.checkpoints import Checkpoint
from h2o_export.checkpoints.derived import DerivedCheckpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.formats import MatrixFormats
from h2o_export.formats.blocks import Blocks
from h2o_export.reference.rounded import RoundedCheckpoint
from h2o_export.reference.streamed_model import StreamedModel
from h2o_export.tensors import QuantizedTensor

TEXTS = 8  # of calibration.text
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


class LayerRounding:
    """Rounds one layer after the other; knows the residual stream of each text before the next one."""

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
        self._made: dict[int, dict[str, QuantizedTensor]] = {}  # by layer and name
        self._moments = Moments()
        self._floats = StreamedModel(original, torch.float32)
        self._floats.watch(self._moments.add)
        self._rounded = StreamedModel(RoundedCheckpoint.of(self.checkpoint, formats), torch.float32)
        self._floats.embed(texts)
        self._states = self._rounded.embed(texts)
        self._next = 0

    def blocks(self, name: str) -> QuantizedTensor | None:
        found = _LAYER.match(name)
        if found is None:
            return None
        layer = int(found[1])
        while self._next <= layer:
            self._round_layer(self._next)
        return self._made[layer].get(name)

    def _round_layer(self, layer: int) -> None:
        self._made.pop(layer - 2, None)
        self._floats.layer(layer, self._states)
        self._made[layer] = {
            name: self._round(name, moments)
            for names, moments in self._moments.take()
            for name in names
            if name in self._shapes
        }
        self._next = layer + 1
        self._states = self._rounded.layer(layer, self._states)

    def _round(self, name: str, moments: Tensor) -> QuantizedTensor:
        weights = self.checkpoint.tensor(name, self._shapes[name]).float()
        form = self._formats.of_layers(name)
        assert isinstance(form, Blocks)
        return compensate(weights, moments, form.bits, form.block_size, form.dtype, name)


@dataclass
class _Input:
    """The input of some matrices: their names, the sum of XᵀX, and its number of rows."""

    names: list[str]
    total: Tensor
    rows: int = 0


class Moments:
    """Second moments XᵀX / n, float32 [K, K], of the inputs of matrices; matrices with the same input share
    them.

    Computed from the rows of `even`.
    """

    def __init__(self) -> None:
        self._inputs: list[_Input] = []
        self._last: Tensor | None = None

    def add(self, name: str, x: Tensor) -> None:
        """`name` multiplies x [..., K]. Matrices with the same x follow each other."""
        rows = x.reshape(-1, x.shape[-1])
        known = next((input for input in self._inputs if name in input.names), None)
        if known is None and x is self._last:
            self._inputs[-1].names.append(name)
        elif known is None:
            known = _Input([name], torch.zeros(x.shape[-1], x.shape[-1]))
            self._inputs.append(known)
        if known is not None and name == known.names[0]:
            rows = even(rows)
            known.total.addmm_(rows.T, rows)
            known.rows += len(rows)
        self._last = x

    def take(self) -> Iterator[tuple[list[str], Tensor]]:
        """Names of matrices and their moments, one input after the other; each is dropped afterwards."""
        self._last = None
        while self._inputs:
            input = self._inputs.pop(0)
            yield input.names, input.total / max(input.rows, 1)


def even(rows: Tensor) -> Tensor:
    """Rows [n, K] scaled to at most the median norm.

    A text's first token has inputs a thousand times as large as all others: weights would be rounded for it
    alone.
    """
    length = rows.norm(dim=1, keepdim=True)
    shorter: Tensor = rows * (length.median() / length.clamp(min=1e-10)).clamp(max=1)
    return shorter
