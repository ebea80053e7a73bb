"""Attention mass: the probability that queries give to keys of the past under full attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.schedule import Span

Array = NDArray[Any]

BLOCK = 128  # queries whose sums are cached: larger lists add these sums


def past_mass(q: Array, k: Array, first: int, past: int, scale: float) -> Array:
    """Summed probabilities that full causal attention of some queries gives to each key of the past.

    q [r, Hq, d] is at first … first + r - 1; k [total, Hkv, d] are the keys from position 0 on; the first
    `past` (at most `first`) are counted. Returns [Hq, past] in the dtype of q; no sum exceeds r.
    """
    rows, heads, _ = q.shape
    group = heads // k.shape[1]
    visible = np.tril(np.ones((rows, rows), bool))  # of the queries' own keys
    mass = np.empty((heads, past), q.dtype)
    for head in range(heads):
        logits = q[:, head] @ k[: first + rows, head // group].T  # [r, first + r]
        logits *= scale
        logits[:, first:][~visible] = -np.inf
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        share = 1.0 / logits.sum(axis=1)
        mass[head] = share @ logits[:, :past]
    return mass


def by_list(mass: Array, lists: int) -> Array:
    """Mass [Hq, past] summed over the query heads that share a list: [lists, past]."""
    return np.asarray(mass.reshape(lists, -1, mass.shape[1]).sum(axis=1))


def selected_mass(mass: Array, keys: Array) -> Array:
    """The mass [Hs, past] of the keys in lists, int [Hs, M] → [Hs]. Keys at `past` or later count as zero."""
    return np.array(
        [row[np.unique(listed[listed < len(row)])].sum() for row, listed in zip(mass, keys, strict=True)],
        mass.dtype,
    )


def best_mass(mass: Array, count: int) -> Array:
    """The largest mass [Hs, past] of any `count` keys → [Hs]."""
    past = mass.shape[1]
    if count >= past:
        return np.asarray(mass.sum(axis=1))
    return np.asarray(np.partition(mass, past - count, axis=1)[:, past - count :].sum(axis=1))


class LayerMass:
    """One layer's queries and keys of a whole prompt; shared sums are computed once.

    q [n, Hq, d], k [n, Hkv, d], both from position 0 on.
    """

    def __init__(self, q: Array, k: Array, scale: float) -> None:
        self._q, self._k, self._scale = q, k, scale
        self._blocks: dict[Span, Array] = {}

    def of(self, rows: Span, past: int) -> Array:
        """As `past_mass` of these queries: [Hq, past]."""
        total = np.zeros((self._q.shape[1], past), self._q.dtype)
        start = rows.start
        while start < rows.stop:
            block = Span(start, min(start // BLOCK * BLOCK + BLOCK, rows.stop))
            total += self._block(block)[:, :past]
            start = block.stop
        return total

    def _block(self, rows: Span) -> Array:
        if rows not in self._blocks:
            q = self._q[rows.start : rows.stop]
            self._blocks[rows] = past_mass(q, self._k, rows.start, rows.start, self._scale)
        return self._blocks[rows]
