"""How much memory a bundle takes at run time, computed from shapes alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from h2o_runtime.config import PrefillConfig
from h2o_runtime.manifest import ModelSpec

LOGITS_BYTES = 16 << 20  # the head runs on as many rows at once as fit


@dataclass(frozen=True)
class Footprint:
    """Bytes by purpose, for a full context.

    weights      every parameter once; a tied embedding twice, as a table and as the head's packed matrix
    cache        keys and values of every layer
    activations  buffers between dense graphs and attention, and a few rows of logits
    memory       scores and memory sets of the h2o policy
    scratch      inside one dense graph at batch size B: four times the MLP's intermediate rows (gate, its
                 sigmoid, their product, up), the normalised rows and the residual
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
    """For `context` tokens. Python and the native libraries come on top: some 65 MB before a model is loaded."""
    item = np.dtype(model.dtype).itemsize
    row = model.query_heads * model.head_size
    rows = min(prefill.batch_size, context)
    embedding = model.vocab_size * model.hidden_size
    logits = max(4 * model.vocab_size, min(context * 4 * model.vocab_size, LOGITS_BYTES))
    memory = 0
    if prefill.policy == "h2o":
        heads = model.kv_heads if prefill.score_heads == "kv" else model.query_heads
        sets = (context // prefill.chunk_size + 1) * heads * prefill.memory * 8
        memory = model.layers * (2 * context * heads * 4 + sets) + context * heads * 4
        memory += rows * model.query_heads * 8
    return Footprint(
        weights=(model.parameters + (embedding if model.tied else 0)) * item,
        cache=2 * model.layers * context * model.kv_heads * model.head_size * item,
        activations=context * ((2 * row + 2 * model.hidden_size) * item + model.head_size * 4 + 16) + logits,
        memory=memory,
        scratch=rows * (4 * model.intermediate_size + 2 * model.hidden_size) * item,
    )
