"""A layer kind with a state, with `toy_convolution_export`: a token sees the two before it, and no kernel runs.

Dense graphs compute all of it. They hand it on as queries, which become the output as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.layers import LayerKind, LayerResources
from h2o_runtime.layers.kind import ArrayShape, StateLayout, Tail
from h2o_runtime.layers.state import StateCall, StateLayers


@dataclass(frozen=True)
class Convolution(LayerKind):
    name: ClassVar[str] = "convolution"
    title: ClassVar[str] = "a short convolution"

    @classmethod
    def state(cls, spec: LayerSpec, dtype: Any) -> StateLayout:
        (before,) = spec.sizes_of_state("before")
        row = ArrayShape((spec.query_heads, spec.query_size), np.dtype(dtype))
        return StateLayout(new={"seen": row}, tails={"earlier": Tail("seen", before)})

    def load(self, resources: LayerResources) -> ConvolutionLayers:
        return ConvolutionLayers(resources)


class ConvolutionLayers(StateLayers):
    def advance(self, call: StateCall) -> None:
        self._device.copy(call.q, call.o)
