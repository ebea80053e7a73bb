"""Which tokens a layer keeps if it may keep only a given number.

H2O (Zhang et al., 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
Models"): among the tokens before a recent window, the one with the lowest sum of probabilities over all later
queries is evicted. New tokens have small sums; the window protects them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """recent: newest tokens that are never evicted; keep: first tokens of the text that are never evicted."""

    recent: int
    keep: int

    def may_go(self, tokens: IntArray, end: int) -> NDArray[np.bool_]:
        """For `tokens` of any shape, positions in a text of length `end`: whether each may be evicted."""
        return (tokens >= self.keep) & (tokens < end - self.recent)

    def victims(self, tokens: IntArray, score: Float64, end: int) -> IntArray:
        """The row to evict in each layer, for tokens [layers, rows] → [layers]. Of equals the older token is
        evicted.

        Raises ValueError for scores that are not numbers, and if all tokens are protected.
        """
        free = self.may_go(tokens, end)
        if np.isnan(score).any() or not free.any(axis=1).all():
            raise ValueError("no token can go: a score is not a number, or all are protected")
        lowest = np.where(free, score, np.inf)
        least = lowest == lowest.min(axis=1, keepdims=True)
        oldest: IntArray = np.where(free & least, tokens, np.iinfo(np.int64).max).argmin(axis=1)
        return oldest

    def survivors(self, score: Float64, rows: int) -> IntArray:
        """Choose `rows` of a text's tokens 0, 1, 2, … [n] to keep, rising. Of equals the newer one stays."""
        n = len(score)
        ranked = np.where(self.may_go(np.arange(n), n), score, np.inf)
        order = np.lexsort((np.arange(n), ranked))  # the first to be evicted comes first
        return np.sort(order[n - rows :]) if n > rows else np.arange(n)


class Memory:
    """The tokens that every layer keeps.

    tokens  int64 [layers, rows]: the position in the text of each row's token
    score   float64 [layers, rows]: its probabilities, summed over queries and heads
    """

    def __init__(self, layers: int, rows: int, rule: Rule) -> None:
        self.rows, self.rule = rows, rule
        self.tokens: IntArray = np.zeros((layers, rows), np.int64)
        self.score: Float64 = np.zeros((layers, rows), np.float64)

    def read(self, layer: int, score: Float64) -> IntArray:
        """Start with a text of len(score) tokens → the tokens to keep, rising: row i holds the i-th."""
        chosen = self.rule.survivors(score, self.rows)
        self.tokens[layer, : len(chosen)] = chosen
        self.score[layer, : len(chosen)] = score[chosen]
        return chosen

    def place(self, token: int) -> IntArray:
        """The row of the text's next token in every layer → [layers]."""
        layers = np.arange(len(self.tokens))
        if token < self.rows:
            row = np.full(len(layers), token)
        else:
            row = self.rule.victims(self.tokens, self.score, token)
        self.tokens[layers, row], self.score[layers, row] = token, 0.0
        return row

    def saw(self, probabilities: NDArray[np.float32]) -> None:
        """Add what the newest token's queries saw of the first rows, [layers, some rows]."""
        self.score[:, : probabilities.shape[1]] += probabilities
