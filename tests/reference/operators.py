"""Operators of ONNX domain ``h2o`` in float64 NumPy, one head at a time. choices.py has those that choose by query.

Written from the formulas, for reading rather than for speed. Sizes:

    n tokens in this call, Hq query heads, Hkv key/value heads, d head size, dv that of values and outputs,
    cap cache capacity, Hs score heads (Hkv, Hq, or less than Hkv), M memory slots.

Query head h reads key/value head ``h // (Hq // Hkv)`` and belongs to score head ``h // (Hq // Hs)``.
The key/value head of score head s is ``s // (Hs // Hkv)``, which is s itself when Hs = Hkv. With Hs < Hkv
key/value head g belongs to score head ``g // (Hkv // Hs)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]


def float64(*arrays: Array) -> list[Float64]:
    return [np.asarray(array).astype(np.float64) for array in arrays]


def softmax_state(logits: Float64, values: Float64) -> tuple[Float64, Float64, Float64, Float64]:
    """Partial softmax of logits [n, K] over values [K, d]; -inf marks an invisible key.

    Returns o [n, d], m [n], l [n] and the probabilities [n, K]. A row that sees no key has the empty
    state: o = 0, m = -inf, l = 0, and all its probabilities are 0.
    """
    m = np.max(logits, axis=1, initial=-np.inf)  # [n]
    seen = np.isfinite(m)
    # exp(-inf - -inf) would be NaN, so rows without a key are shifted by 0: all their terms become 0.
    exponentials = np.exp(logits - np.where(seen, m, 0.0)[:, None])  # [n, K]
    l = exponentials.sum(axis=1)  # [n]
    probabilities = exponentials / np.where(seen, l, 1.0)[:, None]  # [n, K]
    return probabilities @ values, m, l, probabilities


def chunked_intra_attention(
    q: Array, k: Array, v: Array, *, chunk_size: int, scale: float, score_heads: int
) -> tuple[Float64, Float64, Float64, Float64]:
    """Causal attention inside every chunk; row 0 starts a chunk and the last chunk may be partial.

    q [n, Hq, d]; k [n, Hkv, d]; v [n, Hkv, dv] -> o [n, Hq, dv], m [n, Hq], l [n, Hq], colsum [n, Hs].
    """
    q, k, v = float64(q, k, v)
    n, query_heads, _ = q.shape
    kv_heads = k.shape[1]
    o = np.zeros((n, query_heads, v.shape[2]), q.dtype)
    m = np.zeros((n, query_heads))
    l = np.zeros((n, query_heads))
    colsum = np.zeros((n, score_heads))
    for h in range(query_heads):
        kv = h // (query_heads // kv_heads)
        s = h // (query_heads // score_heads)
        for start in range(0, n, chunk_size):
            stop = min(start + chunk_size, n)
            logits = scale * (q[start:stop, h] @ k[start:stop, kv].T)  # [chunk, chunk]
            row, column = np.indices(logits.shape)
            logits[column > row] = -np.inf
            o[start:stop, h], m[start:stop, h], l[start:stop, h], a = softmax_state(logits, v[start:stop, kv])
            colsum[start:stop, s] += a.sum(axis=0)
    return o, m, l, colsum


def memory_gather(k_cache: Array, v_cache: Array, memory: Array) -> tuple[Array, Array]:
    """Copy the cache rows in memory [Hs, M]: caches [cap, Hkv, d or dv] -> k_mem [Hs, M, d], v_mem [Hs, M, dv].

    The only operator that keeps its input's dtype: it moves numbers and computes none.
    """
    score_heads, kv_heads = memory.shape[0], k_cache.shape[1]
    kv_of = [s // (score_heads // kv_heads) for s in range(score_heads)]
    k_mem = np.stack([k_cache[memory[s], kv_of[s]] for s in range(score_heads)])
    v_mem = np.stack([v_cache[memory[s], kv_of[s]] for s in range(score_heads)])
    return k_mem, v_mem


def memory_attention(
    q: Array, k_mem: Array, v_mem: Array, *, scale: float
) -> tuple[Float64, Float64, Float64, Float64]:
    """Attention of every query to every memory slot; no mask, all slots lie in the past. M may be 0.

    q [n, Hq, d]; k_mem [Hs, M, d]; v_mem [Hs, M, dv] -> o [n, Hq, dv], m [n, Hq], l [n, Hq], colsum [Hs, M].
    """
    q, k_mem, v_mem = float64(q, k_mem, v_mem)
    n, query_heads, _ = q.shape
    score_heads, slots, _ = k_mem.shape
    o = np.zeros((n, query_heads, v_mem.shape[2]), q.dtype)
    m = np.zeros((n, query_heads))
    l = np.zeros((n, query_heads))
    colsum = np.zeros((score_heads, slots))
    for h in range(query_heads):
        s = h // (query_heads // score_heads)
        logits = scale * (q[:, h] @ k_mem[s].T)  # [n, M]
        o[:, h], m[:, h], l[:, h], a = softmax_state(logits, v_mem[s])
        colsum[s] += a.sum(axis=0)
    return o, m, l, colsum


def online_softmax_fusion(
    o_a: Array, m_a: Array, l_a: Array, o_b: Array, m_b: Array, l_b: Array
) -> tuple[Float64, Float64, Float64]:
    """Fuse two partial softmaxes: o [n, Hq, d], m and l [n, Hq] each.

    An empty state (l = 0, m = -inf) leaves the other one exactly as it is; two empty ones stay empty.
    """
    o_a, m_a, l_a, o_b, m_b, l_b = float64(o_a, m_a, l_a, o_b, m_b, l_b)
    o, m, l = np.zeros_like(o_a), np.full_like(m_a, -np.inf), np.zeros_like(l_a)
    for at in np.ndindex(*m_a.shape):
        if l_b[at] == 0.0:
            o[at], m[at], l[at] = o_a[at], m_a[at], l_a[at]
        elif l_a[at] == 0.0:
            o[at], m[at], l[at] = o_b[at], m_b[at], l_b[at]
        else:
            m[at] = max(m_a[at], m_b[at])
            w_a = l_a[at] * np.exp(m_a[at] - m[at])
            w_b = l_b[at] * np.exp(m_b[at] - m[at])
            l[at] = w_a + w_b
            o[at] = (w_a * o_a[at] + w_b * o_b[at]) / l[at]
    return o, m, l


def memory_fused_attention(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    memory: Array,
    o_intra: Array,
    m_intra: Array,
    l_intra: Array,
    *,
    scale: float,
) -> tuple[Float64, Float64]:
    """Gather, memory attention and fusion in sequence: o [n, Hq, dv] and the inter pass's colsum [Hs, M]."""
    spanned = max(k_cache.shape[1] // len(memory), 1)
    k_mem, v_mem = memory_gather(k_cache, v_cache, memory.repeat(spanned, axis=0))
    o_inter, m_inter, l_inter, received = memory_attention(q, k_mem, v_mem, scale=scale)
    colsum = received.reshape(len(memory), spanned, -1).sum(axis=1)
    o, _, _ = online_softmax_fusion(o_intra, m_intra, l_intra, o_inter, m_inter, l_inter)
    return o, colsum


def candidate_score(q_window: Array, k: Array, k_mem: Array, *, scale: float) -> tuple[Float64, Float64]:
    """Votes of a chunk's last w queries, each a joint softmax over the memory and the chunk up to itself.

    q_window [w, Hq, d] are the queries of the last w rows of k [n, Hkv, d]; k_mem [Hs, M, d], M may be 0
    -> score_mem [Hs, M], score_chunk [n, Hs].
    """
    q_window, k, k_mem = float64(q_window, k, k_mem)
    w, query_heads, _ = q_window.shape
    n, kv_heads, d = k.shape
    score_heads, slots, _ = k_mem.shape
    score_mem = np.zeros((score_heads, slots))
    score_chunk = np.zeros((n, score_heads))
    for h in range(query_heads):
        kv = h // (query_heads // kv_heads)
        s = h // (query_heads // score_heads)
        for r in range(w):
            visible = n - w + r + 1  # chunk rows up to and including the query's own
            keys = np.concatenate([k_mem[s], k[:visible, kv]])  # [M + visible, d]
            logits = scale * (keys @ q_window[r, h])[None]  # [1, M + visible]
            *_, a = softmax_state(logits, np.zeros((len(keys), d)))
            score_mem[s] += a[0, :slots]
            score_chunk[:visible, s] += a[0, slots:]
    return score_mem, score_chunk


def _local_and_ranked(
    score: Array, memory: Array, start: int, stop: int, local: int, s: int
) -> tuple[list[int], list[int], Float64]:
    """Local window, the other candidates of score head s from best to worst, and the scores they rank by."""
    first_local = max(start, stop - local)
    kept = list(range(first_local, stop))
    others = [int(j) for j in memory[s]] + list(range(start, first_local))
    if any(j >= start for j in memory[s]) or len(set(others)) != len(others):
        raise ValueError("memory must be unique and lie below the range")
    # Scores are float32 by design; below 1e-30 all of them count as 0, for engines round there as they like.
    rank_by = {j: float(score[j, s]) if score[j, s] >= 1e-30 else 0.0 for j in others}
    ranked = sorted(others, key=lambda j: (-rank_by[j], j))  # best first, ties to the lower index
    return kept, ranked, np.array([rank_by[j] for j in ranked])


def memory_select(score: Array, memory: Array, start: int, stop: int, *, local: int, heavy: int) -> Int32:
    """The next memory set: the last `local` tokens of [start, stop) and the best of all other candidates.

    score [cap, Hs]; memory [Hs, Mp], all below `start` -> int32 [Hs, local + heavy], sorted.
    Candidates are the memory and the range. A range shorter than
    `local` is kept whole, and its free slots go to the best of the rest, so the size never changes.
    """
    rows = []
    for s in range(memory.shape[0]):
        kept, ranked, _ = _local_and_ranked(score, memory, start, stop, local, s)
        free = local + heavy - len(kept)
        if free > len(ranked):
            raise ValueError("fewer candidates than memory slots: such a history is used whole")
        rows.append(sorted(kept + ranked[:free]))
    return np.array(rows, dtype=np.int32).reshape(memory.shape[0], local + heavy)


def selection_margin(
    score: Array, memory: Array, start: int, stop: int, *, local: int, heavy: int
) -> Float64:
    """Relative gap, per score head [Hs], between the last score that got in and the first that did not.

    Below 1e-5 the two entries may swap in a float32 run. Infinite where rounding cannot change the set:
    nothing was left out.
    """
    margins = np.full(memory.shape[0], np.inf)
    for s in range(memory.shape[0]):
        kept, ranked, by = _local_and_ranked(score, memory, start, stop, local, s)
        last = local + heavy - len(kept) - 1
        if 0 <= last < len(ranked) - 1 and np.isfinite(by[last]):
            margins[s] = (by[last] - by[last + 1]) / max(abs(by[last]), np.finfo(np.float64).tiny)
    return margins


def same_but_for_near_ties(
    expected: Array, actual: Array, score: Array, *, stop: int, local: int, rtol: float = 1e-5
) -> bool:
    """Whether two memory sets [Hs, M] for a range ending at `stop` agree, score [cap, Hs] deciding ties.

    Entries that one set has and the other lacks must all score within `rtol` of each other, and none of
    them may belong to the local window. Of a probability exp(-x) the relative error is the
    absolute one of x, so beyond x = 10 rtol grows with it. `actual` must be sorted, unique and in range.
    """
    if expected.shape != actual.shape:
        return False
    for s in range(expected.shape[0]):
        row = [int(j) for j in actual[s]]
        if row != sorted(set(row)) or any(j < 0 or j >= stop for j in row):
            return False
        swapped = sorted(set(row) ^ {int(j) for j in expected[s]})
        if any(j >= stop - local for j in swapped):
            return False
        scores = score[swapped, s]
        if not swapped or scores.max() == scores.min():
            continue
        if scores.max() - scores.min() > rtol * scores.max() * max(1.0, -np.log(scores.max()) / 10):
            return False
    return True


def cached_attention(
    q: Array, k_cache: Array, v_cache: Array, length: int, *, scale: float, window: float = 0
) -> Float64:
    """Exact causal attention: row r of q [n, Hq, d] stands at length - n + r and sees the cache up to it, of that
    the last `window` rows unless it is 0.

    Caches [cap, Hkv, d] and [cap, Hkv, dv] -> o [n, Hq, dv].
    """
    q, k_cache, v_cache = float64(q, k_cache, v_cache)
    n, query_heads, _ = q.shape
    kv_heads = k_cache.shape[1]
    o = np.zeros((n, query_heads, v_cache.shape[2]), q.dtype)
    for h in range(query_heads):
        kv = h // (query_heads // kv_heads)
        for r in range(n):
            stop = length - n + r + 1
            visible = slice(max(0, stop - int(window)) if window else 0, stop)
            logits = scale * (k_cache[visible, kv] @ q[r, h])[None]  # [1, visible]
            o[r : r + 1, h], *_ = softmax_state(logits, v_cache[visible, kv])
    return o
