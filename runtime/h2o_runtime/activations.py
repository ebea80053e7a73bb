"""The buffers between dense graphs and attention, allocated once for a context."""

from __future__ import annotations

import numpy as np

from h2o_runtime.devices import Device, Tensor
from h2o_runtime.model import ModelSpec

LOGITS_BYTES = 16 << 20  # the head runs on as many rows at once as fit


def logits_rows(model: ModelSpec, capacity: int) -> int:
    """How many rows of logits are held at once, at least one."""
    return max(1, min(capacity, LOGITS_BYTES // (4 * model.vocab_size)))


class Activations:
    """Rows are the new tokens of one call, at most `capacity` of them.

    q, attention       [cap, Hq, d], [cap, Hq, dv]
    cos, sin           float32 [cap, d/2], of what is rotated
    tokens, positions  int64 [cap]: of this call; 0, 1, 2, … for every call
    logits             float32 [rows, vocab], `rows` being few: the head runs only on rows that are asked for

    The residual stream has two buffers, because a graph may not write over its own input: a layer reads the
    one and writes the other.
    """

    def __init__(self, model: ModelSpec, capacity: int, device: Device) -> None:
        dtype = np.dtype(model.dtype)
        heads, pairs = (capacity, model.query_heads), model.rotary_size // 2
        self.q = device.empty((*heads, model.query_size), dtype)
        self.attention = device.empty((*heads, model.out_size), dtype)
        self.cos = device.empty((capacity, pairs), np.float32)
        self.sin = device.empty((capacity, pairs), np.float32)
        self.tokens = device.empty((capacity,), np.int64)
        self.positions = device.empty((capacity,), np.int64)
        device.upload(np.arange(capacity, dtype=np.int64), self.positions)
        self.logits = device.empty((logits_rows(model, capacity), model.vocab_size), np.float32)
        self._residual = [device.empty((capacity, model.hidden_size), dtype) for _ in range(2)]

    def residual(self, part: int) -> Tensor:
        """Output buffer of dense part `part`, [cap, D]; part + 1 reads it."""
        return self._residual[part % 2]

    @property
    def nbytes(self) -> int:
        ends = (self.tokens, self.positions, self.logits)
        return sum(
            array.nbytes for array in (self.q, self.attention, self.cos, self.sin, *ends, *self._residual)
        )
