"""The gated delta rule (Yang et al., 2024, "Gated Delta Networks"): a layer with a state in place of keys.

A short convolution, gates and norms are in its dense graphs. Between them each token changes a matrix of every
head, and reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.layers.kind import ArrayShape, LayerKind, LayerResources, StateLayout
from h2o_runtime.layers.state import GatedHeads, gated_state
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import GATED_DELTA


@dataclass(frozen=True)
class GatedDelta(LayerKind):
    """Sizes of its state: `channels` of the convolution, and `tail`, the earlier inputs that a token reads."""

    name: ClassVar[str] = "gated-delta"
    title: ClassVar[str] = "the gated delta rule"

    @classmethod
    def state(cls, spec: LayerSpec, dtype: DTypeLike) -> StateLayout:
        narrow, heads = np.dtype(dtype), spec.query_heads
        of_head = ArrayShape((heads,), np.dtype(np.float32))
        new = {
            "k": ArrayShape((spec.kv_heads, spec.head_size), narrow),
            "v": ArrayShape((heads, spec.value_size), narrow),
            "decay": of_head,
            "beta": of_head,
        }
        return gated_state(spec, narrow, new)

    def load(self, resources: LayerResources) -> GatedHeads:
        return GatedHeads(resources, GATED_DELTA)

    def multiplications(self, model: ModelSpec, spec: LayerSpec) -> int:
        """To what the convolution reads, to the gate, and to two numbers a head; and those of the state."""
        channels, _ = spec.sizes_of_state("channels", "tail")
        rows = channels + spec.gate_size + 2 * spec.query_heads
        return model.hidden_size * rows + 3 * spec.query_heads * spec.head_size * spec.value_size
