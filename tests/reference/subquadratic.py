"""The subquadratic pattern in float64, one query at a time: sets of tokens and of landmarks, then one softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.reference.operators import Array, Float64, float64, softmax_state


@dataclass(frozen=True)
class Pattern:
    window: int
    block_size: int
    globals: Sequence[int] = ()
    causal: bool = True
    log_stride: bool = True
    landmarks: bool = True
    count_bias: bool = False

    def tokens(self, i: int, n: int) -> list[int]:
        """Tokens that query i of n sees, each once, rising."""
        last = i if self.causal else min(n - 1, i + self.window)
        seen = set(range(max(0, i - self.window), last + 1))
        seen |= {g for g in self.globals if g < n and (g <= i or not self.causal)}
        if self.log_stride:
            seen |= {i - 2**k for k in range(40) if i >= 2**k}
            seen |= set() if self.causal else {i + 2**k for k in range(40) if i + 2**k < n}
        return sorted(seen)

    def marks(self, i: int, n: int) -> list[int]:
        """Blocks whose means query i of n sees, each once, rising."""
        if not self.landmarks:
            return []
        size = self.block_size
        count = (i + 1) // size if self.causal else -(-n // size)
        here = count - 1 if self.causal else i // size
        seen = {here - 1, here, here + 1}
        if self.log_stride:
            seen |= {here - 2**k for k in range(40)}
            seen |= set() if self.causal else {here + 2**k for k in range(40)}
        seen -= set() if self.causal else {here}
        return sorted(mark for mark in seen if 0 <= mark < count)

    def edges(self, n: int) -> int:
        return sum(len(self.tokens(i, n)) + len(self.marks(i, n)) for i in range(n))


def block_means(rows: Array, size: int) -> Float64:
    """rows [n, Hkv, d] → [blocks, Hkv, d]; the last block may be short."""
    (exact,) = float64(rows)
    starts = range(0, len(rows), size)
    return np.stack([exact[start : start + size].mean(0) for start in starts])


def attention(q: Array, k: Array, v: Array, pattern: Pattern, *, scale: float) -> Float64:
    """q [n, Hq, d] are the last n of the rows of k, v [length, Hkv, d] → o [n, Hq, d]."""
    n, query_heads, _ = q.shape
    length, kv_heads = len(k), k.shape[1]
    k_mean, v_mean = (block_means(x, max(pattern.block_size, 1)) for x in (k, v))
    q, k, v = float64(q, k, v)
    o = np.zeros_like(q)
    for r in range(n):
        i = length - n + r
        tokens, marks = pattern.tokens(i, length), pattern.marks(i, length)
        bias = np.zeros(len(tokens) + len(marks))
        if pattern.count_bias:
            bias[len(tokens) :] = np.log(pattern.block_size)
        for h in range(query_heads):
            kv = h // (query_heads // kv_heads)
            keys = np.concatenate([k[tokens, kv], k_mean[marks, kv]])
            values = np.concatenate([v[tokens, kv], v_mean[marks, kv]])
            o[r : r + 1, h], *_ = softmax_state((scale * keys @ q[r, h] + bias)[None], values)
    return o
