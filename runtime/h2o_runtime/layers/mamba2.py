"""Mamba-2 (Dao and Gu, 2024, "Transformers are SSMs"): a layer with a state in place of keys.

A short convolution, gates and norms are in its dense graphs. Between them each token decays a matrix of every
head, adds to it, and reads it.
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
from h2o_runtime.operators import MAMBA2


@dataclass(frozen=True)
class Mamba2(LayerKind):
    """Sizes of its state: `channels` of the convolution, and `tail`, the earlier inputs that a token reads.

    The tensor q of a layer is what its heads add to the state. They share rows of it in `kv_heads` groups.
    """

    name: ClassVar[str] = "mamba2"
    title: ClassVar[str] = "Mamba-2"

    @classmethod
    def state(cls, spec: LayerSpec, dtype: DTypeLike) -> StateLayout:
        shared = ArrayShape((spec.kv_heads, spec.head_size), np.dtype(dtype))
        of_head = ArrayShape((spec.query_heads,), np.dtype(np.float32))
        new = {"b": shared, "c": shared, "decay": of_head, "step": of_head, "skip": of_head}
        return gated_state(spec, shared.dtype, new)

    def load(self, resources: LayerResources) -> GatedHeads:
        return GatedHeads(resources, MAMBA2)

    def multiplications(self, model: ModelSpec, spec: LayerSpec) -> int:
        """To what the convolution reads, to the gate, and to a number a head; and those of the state."""
        channels, _ = spec.sizes_of_state("channels", "tail")
        rows = channels + spec.gate_size + spec.query_heads
        return model.hidden_size * rows + 2 * spec.query_heads * spec.head_size * spec.value_size
