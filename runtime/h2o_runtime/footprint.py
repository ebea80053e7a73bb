"""How much memory a bundle takes at run time, computed from shapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from h2o_runtime.activations import logits_rows
from h2o_runtime.caches import Cache, Contiguous
from h2o_runtime.config import PrefillConfig
from h2o_runtime.model import ModelSpec
from h2o_runtime.policies.decode import DecodePolicy, FullDecode


@dataclass(frozen=True)
class Footprint:
    """Bytes by purpose, for a full context.

    weights      every parameter once; a tied embedding twice, as a table and as the head's packed matrix
    cache        keys and values of every layer
    activations  buffers between dense graphs and attention, and a few rows of logits
    memory       what the policies remember, as scores and memory sets
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


def footprint(
    model: ModelSpec,
    context: int,
    prefill: PrefillConfig,
    cache: Cache | None = None,
    decode: DecodePolicy[Any] | None = None,
) -> Footprint:
    """For `context` tokens. Python and the native libraries come on top: some 65 MB before a model is loaded."""
    item = np.dtype(model.dtype).itemsize
    row = model.query_heads * model.head_size
    rows = min(prefill.algorithm.batch_size, context)
    embedding = model.vocab_size * model.hidden_size
    logits = logits_rows(model, context) * 4 * model.vocab_size
    policies = (prefill.algorithm, decode or FullDecode())
    return Footprint(
        weights=(model.parameters + (embedding if model.tied else 0)) * item,
        cache=(cache or Contiguous()).store_bytes(model, context),
        activations=context * ((2 * row + 2 * model.hidden_size) * item + model.head_size * 4 + 16) + logits,
        memory=sum(policy.state_bytes(model, context) for policy in policies),
        scratch=rows * (4 * model.intermediate_size + 2 * model.hidden_size) * item,
    )
