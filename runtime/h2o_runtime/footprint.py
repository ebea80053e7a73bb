"""How much memory a bundle takes at run time, computed from shapes alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from h2o_runtime.config import PrefillConfig
from h2o_runtime.manifest import ModelSpec


@dataclass(frozen=True)
class Footprint:
    """Bytes by purpose, for a full context.

    weights      every parameter once
    cache        keys and values of every layer
    activations  buffers between dense graphs and attention
    memory       scores and memory sets of the h2o policy
    scratch      inside one dense graph at batch size B: the MLP's intermediate rows dominate
    """

    weights: int
    cache: int
    activations: int
    memory: int
    scratch: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations + self.memory + self.scratch


def footprint(model: ModelSpec, context: int, prefill: PrefillConfig) -> Footprint:
    """Estimate for `context` tokens; native libraries and Python itself (about 100 MB) come on top."""
    item = np.dtype(model.dtype).itemsize
    row = model.query_heads * model.head_size
    rows = min(prefill.batch_size, context)
    memory = 0
    if prefill.policy == "h2o":
        heads = model.kv_heads if prefill.score_heads == "kv" else model.query_heads
        sets = (context // prefill.chunk_size + 1) * heads * prefill.memory * 8
        memory = model.layers * (2 * context * heads * 4 + sets) + rows * model.query_heads * 8
    return Footprint(
        weights=model.parameters * item,
        cache=2 * model.layers * context * model.kv_heads * model.head_size * item,
        activations=context * ((2 * row + 2 * model.hidden_size) * item + model.head_size * 4 + 8),
        memory=memory,
        scratch=rows * (3 * model.intermediate_size + 2 * model.hidden_size) * item,
    )
