"""Page selection in float64: bounds of pages, which of them a token attends to, and its attention."""

from __future__ import annotations

import numpy as np

from tests.reference.operators import Array, Float64, float64, softmax_state


def page_bounds(k: Array, page: int) -> tuple[Float64, Float64]:
    """Smallest and largest keys of pages of k [length, Hkv, d], the last of which may be short."""
    (exact,) = float64(k)
    parts = [exact[start : start + page] for start in range(0, len(k), page)]
    return np.stack([part.min(0) for part in parts]), np.stack([part.max(0) for part in parts])


def upper_bounds(q: Array, k_min: Array, k_max: Array, sets: int) -> Float64:
    """q [n, Hq, d] → [sets, pages]: the largest over rows and the set's query heads."""
    q, k_min, k_max = float64(q, k_min, k_max)
    group = q.shape[1] // k_min.shape[1]
    low, high = (np.repeat(x, group, axis=1) for x in (k_min, k_max))  # [pages, Hq, d]
    bound = np.maximum(q[:, None] * low, q[:, None] * high).sum(-1).max(0)  # [pages, Hq]
    return bound.reshape(len(low), sets, -1).max(2).T


def page_select(q: Array, k_min: Array, k_max: Array, sets: int, budget: int) -> Array:
    """int32 [sets, budget]: the last page and the best of the others, rising, -1 where there are no more."""
    bound = upper_bounds(q, k_min, k_max, sets)
    out = np.full((sets, budget), -1, np.int32)
    for row, scores in zip(out, bound, strict=True):
        order = np.argsort(-scores[:-1], kind="stable")[: budget - 1]
        chosen = np.sort([*order, len(scores) - 1])
        row[: len(chosen)] = chosen
    return out


def page_attention(q: Array, k: Array, v: Array, page_list: Array, page: int, *, scale: float) -> Float64:
    """q [1, Hq, d]; k, v [length, Hkv, d]; page_list [Hs, P] → [1, Hq, d]."""
    q, k, v = float64(q, k, v)
    o = np.zeros_like(q)
    for h in range(q.shape[1]):
        pages = page_list[h // (q.shape[1] // len(page_list))]
        rows = [r for p in pages if p >= 0 for r in range(p * page, min((p + 1) * page, len(k)))]
        kv = h // (q.shape[1] // k.shape[1])
        o[0, h] = softmax_state(scale * (k[rows, kv] @ q[0, h])[None], v[rows, kv])[0]
    return o
