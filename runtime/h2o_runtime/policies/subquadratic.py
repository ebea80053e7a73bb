"""The subquadratic pattern of prefill and decode: which keys a query sees, and the landmarks.

A query at position i sees its window, the first tokens of the prompt, the tokens i - 2^k, and landmarks: means of
the keys and of the values of complete blocks, the newest two and those 2^k blocks before. Tokens and landmarks
share one softmax. Rows are positions here: nothing may have been evicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from h2o_runtime.attention.provider import AttentionProvider, Float32, Int32
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import LANDMARK_UPDATE, SUBQUADRATIC_ATTENTION


@dataclass(frozen=True)
class Pattern:
    """window         earlier tokens that a query sees besides itself
    global_tokens  first tokens of the prompt that every query sees
    strides        whether it sees tokens and landmarks at powers of two
    block          rows that a landmark is the mean of; 0: there are none
    count_bias     whether a landmark weighs as much as `block` tokens of its score
    """

    window: int
    global_tokens: int
    strides: bool
    block: int
    count_bias: bool

    def blocks(self, rows: int) -> int:
        """Landmarks of this many rows; the last may cover fewer."""
        return -(-rows // self.block) if self.block else 0

    def attend(
        self, provider: AttentionProvider, q: Tensor, kv: KV, landmarks: Landmarks, layer: int, o: Tensor
    ) -> None:
        """Fill o [n, Hq, d] for queries q at the last n rows of `kv`, whose landmarks are up to date."""
        k_mean, v_mean = landmarks.k_mean[layer], landmarks.v_mean[layer]
        provider.run(
            SUBQUADRATIC_ATTENTION,
            kv,
            q=q,
            k_mean=k_mean,
            v_mean=v_mean,
            global_rows=landmarks.global_rows,
            window=self.window,
            block_size=self.block,
            strides=int(self.strides),
            count_bias=int(self.count_bias),
            o=o,
        )

    def visible(self, n: int) -> np.ndarray[Any, Any]:
        """The number of tokens and landmarks that each query of a prompt of n tokens sees, int64 [n]."""
        i = np.arange(n)
        seen = np.minimum(i, self.window) + 1
        for token in range(min(self.global_tokens, n)):
            distance = i - token
            power = (distance & (distance - 1)) == 0
            seen += (distance > self.window) & ~(power & self.strides)
        newest = (i + 1) // self.block - 1 if self.block else np.full(n, -1)
        seen += np.clip(newest + 1, 0, 2)
        for k in range(n.bit_length() if self.strides else 0):
            seen += (i >= 1 << k) & (1 << k > self.window)
            seen += (newest >= 1 << k) & (k > 0)
        return seen

    def check_context(self, capacity: int) -> None:
        """Raises ConfigError for a window that no prompt can fill."""
        if self.window > capacity:
            raise ConfigError(
                f"window ({self.window:,}) is beyond the context of {capacity:,} tokens: lower window or raise "
                "`context`",
                field="window",
            )


class Landmarks:
    """Means of blocks of keys and values for `layers` layers, and the rows that every query sees."""

    def __init__(
        self, pattern: Pattern, model: ModelSpec, layers: int, capacity: int, device: Device
    ) -> None:
        shape = (layers, pattern.blocks(capacity), model.kv_heads, model.head_size)
        self.k_mean: Float32 = device.zeros(shape, np.float32)
        self.v_mean: Float32 = device.zeros(shape, np.float32)
        rows = min(pattern.global_tokens, capacity)
        self.global_rows: Int32 = device.zeros((rows,), np.int32)
        if rows:
            device.upload(np.arange(rows, dtype=np.int32), self.global_rows)
        self._block = pattern.block

    def update(self, provider: AttentionProvider, layer: int, kv: KV, start: int | Tensor) -> None:
        """Add the rows from `start` on, all that `kv` has; earlier rows are already included."""
        if self._block:
            provider.run(
                LANDMARK_UPDATE,
                kv,
                k_mean=self.k_mean[layer],
                v_mean=self.v_mean[layer],
                start=start,
                block_size=self._block,
            )

    @staticmethod
    def nbytes(pattern: Pattern, model: ModelSpec, layers: int, context: int) -> int:
        """Bytes for `context` tokens."""
        means = 2 * layers * pattern.blocks(context) * model.kv_heads * model.head_size
        return 4 * (means + min(pattern.global_tokens, context))
