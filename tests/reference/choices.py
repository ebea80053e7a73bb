"""QuerySelect and BlockSelect in float64 NumPy, and the votes that they choose by. Sizes as in operators.py."""

from __future__ import annotations

from functools import partial

import numpy as np

from . import operators
from .operators import Array, Float64, Int32

STEP, FIRST, SAMPLED = 128, 56, 16  # of each STEP places, SAMPLED from number FIRST on stand for all


def sample_weights(places: int) -> Float64:
    """How often each of a vote's places counts in the estimate of its softmax's denominator: the first STEP once,
    later ones by the sample.
    """
    place = np.arange(places)
    within = place % STEP - FIRST
    sampled = (within >= 0) & (within < SAMPLED)
    return np.where(place < STEP, 1.0, np.where(sampled, STEP / SAMPLED, 1e-300))  # whose logarithm is finite


def query_score(
    q: Array,
    k_cache: Array,
    candidates: Array,
    past: int,
    first: int | None = None,
    *,
    scale: float,
    stride: int,
    reach: int,
) -> Float64:
    """What each candidate gets of one of each `stride` of a tile's queries, another one for each head of those that
    vote together: its probability among the candidates and the rows from `past` to the query, summed; and a quarter
    of what the candidates up to `reach` rows before and behind it get. A probability is at most 1, and its
    denominator counts candidates by `sample_weights`.

    q [n, Hq, d]; k_cache [cap, Hkv, d]; candidates int32 [Hs, C], C = 0: all rows below `past`; first: the row of
    q's first query, None: over the candidates alone -> [past, Hs], zero for rows that are no candidates.
    """
    q, k_cache = operators.float64(q, k_cache)
    query_heads, kv_heads, score_heads = q.shape[1], k_cache.shape[1], len(candidates)
    score = np.zeros((past, score_heads))
    for h in range(query_heads):
        kv = h // (query_heads // kv_heads)
        s = h // (query_heads // score_heads)
        rows = candidates[s] if candidates.shape[1] else np.arange(past)
        weights = sample_weights(len(rows))
        together = query_heads // score_heads
        for run in range(0, len(q), stride):
            r = min(run + h % together * stride // together, len(q) - 1)
            own = np.arange(past, past if first is None else first + r + 1)
            logits = scale * (k_cache[np.concatenate([rows, own]), kv] @ q[r, h])  # [rows + own]
            state = np.logaddexp.reduce(logits + np.log(np.concatenate([weights, np.ones(len(own))])))
            score[rows, s] += np.exp(np.minimum(logits[: len(rows)] - state, 0.0))
    total = score.copy()
    for distance in range(1, min(reach, past - 1) + 1):
        total[distance:] += score[:-distance] / 4
        total[:-distance] += score[distance:] / 4
    for s in range(score_heads if candidates.shape[1] else 0):
        total[np.setdiff1d(np.arange(past), candidates[s]), s] = 0.0
    return total


def query_select(
    q: Array,
    k_cache: Array,
    candidates: Array,
    past: Array,
    first: Array,
    *,
    scale: float,
    tile: int,
    stride: int,
    reach: int,
    local: int,
    heavy: int,
    score_heads: int,
) -> Int32:
    """Each tile's last `local` rows below its past, and the best of its other candidates by `query_score`.

    q [n, Hq, d], `tile` rows a tile; candidates int32 [t, Hl, C], each for Hs / Hl heads; past, first int64 [t]
    -> int32 [t, Hs, local + heavy], sorted.
    """
    chosen = []
    rule = {"scale": scale, "stride": stride, "reach": reach}
    candidates = candidates.repeat(score_heads // candidates.shape[1], axis=1)
    for i, (end, begin) in enumerate(zip(past.tolist(), first.tolist(), strict=True)):
        rows, own = q[i * tile : (i + 1) * tile], candidates[i]
        score = query_score(rows, k_cache, own, end, begin, **rule).astype(np.float32)  # type: ignore[arg-type]
        everything = np.tile(np.arange(end, dtype=np.int32), (len(own), 1))
        for s, looked_at in enumerate(own if own.shape[1] else everything):
            early = looked_at[None, looked_at < end - local]
            column = score[:, s : s + 1]
            chosen += [operators.memory_select(column, early, end - local, end, local=local, heavy=heavy)]
    return np.concatenate(chosen).reshape(len(past), -1, local + heavy)


def block_score(
    q: Array,
    k_cache: Array,
    past: int,
    *,
    scale: float,
    stride: int,
    block_size: int,
    local: int,
    score_heads: int,
) -> Float64:
    """What the rows below `past` get as candidates of a tile: the votes for their block, among all whole blocks.
    The first block, and rows from the block on in which the local window begins, come before all others.

    A block's score is scale * (q . mean) + scale^2 / 2 * sum(q^2 * variance), over its keys: of
    log(mean(exp(scale * q . k))) the expansion to the second order, with a diagonal covariance.

    q [n, Hq, d]; k_cache [cap, Hkv, d] -> [past, Hs], infinite for those rows.
    """
    blocks = past // block_size
    q, keys = operators.float64(q, k_cache[: blocks * block_size])
    by_block = keys.reshape(blocks, block_size, *keys.shape[1:])
    moments = np.concatenate([by_block.mean(axis=1), by_block.var(axis=1)], axis=2)  # [blocks, Hkv, 2d]
    spread = np.concatenate([q, scale / 2 * q**2], axis=2)
    every = np.zeros((score_heads, 0), np.int32)
    votes = query_score(spread, moments, every, blocks, scale=scale, stride=stride, reach=0)
    score = np.full((past, score_heads), np.inf)
    ranked = (past - local) // block_size * block_size
    score[block_size:ranked] = votes.repeat(block_size, axis=0)[block_size:ranked]
    return score


def block_select(
    q: Array,
    k_cache: Array,
    past: Array,
    *,
    scale: float,
    tile: int,
    stride: int,
    block_size: int,
    local: int,
    heavy: int,
    score_heads: int,
) -> Int32:
    """Each tile's last `local` rows below its past, and the best others by `block_score`.

    q [n, Hq, d], `tile` rows a tile; past int64 [t] -> int32 [t, Hs, local + heavy], sorted.
    """
    score_of = partial(block_score, scale=scale, stride=stride, block_size=block_size, local=local)
    chosen = []
    for i, end in enumerate(past.tolist()):
        rows = q[i * tile : (i + 1) * tile]
        score = score_of(rows, k_cache, end, score_heads=score_heads).astype(np.float32)
        early = np.tile(np.arange(end - local, dtype=np.int32), (score_heads, 1))
        chosen.append(operators.memory_select(score, early, end - local, end, local=local, heavy=heavy))
    return np.stack(chosen)
