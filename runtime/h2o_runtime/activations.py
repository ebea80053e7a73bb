"""The buffers between dense graphs and attention, allocated once for a context."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.manifest import ModelSpec

Buffer = NDArray[Any]


class Activations:
    """Rows are the new tokens of one call, at most `capacity` of them.

    q, attention   [cap, Hq, d]
    cos, sin       float32 [cap, d/2]
    logits         float32 [rows, vocab], `rows` being few: the head runs only on rows that are asked for

    The residual stream has two buffers, because a graph may not write over its own input: a layer reads the
    one and writes the other.
    """

    def __init__(self, model: ModelSpec, capacity: int) -> None:
        dtype = np.dtype(model.dtype)
        heads = (capacity, model.query_heads, model.head_size)
        self.q: Buffer = np.empty(heads, dtype)
        self.attention: Buffer = np.empty(heads, dtype)
        self.cos: Buffer = np.empty((capacity, model.head_size // 2), np.float32)
        self.sin: Buffer = np.empty_like(self.cos)
        self.positions: Buffer = np.arange(capacity, dtype=np.int64)
        rows = max(1, min(capacity, (16 << 20) // (4 * model.vocab_size)))
        self.logits: Buffer = np.empty((rows, model.vocab_size), np.float32)
        self._residual = [np.empty((capacity, model.hidden_size), dtype) for _ in range(2)]

    def residual(self, part: int) -> Buffer:
        """Output buffer of dense part `part`, [cap, D]; part + 1 reads it."""
        return self._residual[part % 2]

    @property
    def nbytes(self) -> int:
        arrays = (self.q, self.attention, self.cos, self.sin, self.positions, self.logits, *self._residual)
        return sum(array.nbytes for array in arrays)
