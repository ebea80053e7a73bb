"""A short convolution between two gates: a layer whose state is what it reads of the few tokens before.

Its dense graphs compute all of it. What they hand on as queries is what the next one takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.layers.kind import ArrayShape, LayerKind, LayerResources, StateLayout, Tail
from h2o_runtime.layers.state import StateCall, StateLayers
from h2o_runtime.model_spec import ModelSpec


@dataclass(frozen=True)
class ShortConvolution(LayerKind):
    """Sizes of its state: `width` of a token's row, and `tail`, the earlier rows that a token reads."""

    name: ClassVar[str] = "short-convolution"
    title: ClassVar[str] = "short convolutions"

    @classmethod
    def state(cls, spec: LayerSpec, dtype: DTypeLike) -> StateLayout:
        width, tail = spec.sizes_of_state("width", "tail")
        row = ArrayShape((width,), np.dtype(dtype))
        return StateLayout(new={"gated": row}, tails={"tail": Tail("gated", tail)})

    def load(self, resources: LayerResources) -> ConvolutionLayers:
        return ConvolutionLayers(resources)

    def multiplications(self, model: ModelSpec, spec: LayerSpec) -> int:
        """To two gates and a value, and those of the kernel."""
        width, tail = spec.sizes_of_state("width", "tail")
        return 3 * model.hidden_size * width + (tail + 1) * width


class ConvolutionLayers(StateLayers):
    def advance(self, call: StateCall) -> None:
        self._device.copy(call.q, call.o)
