"""Vertical-slash attention in float64: which columns and diagonals matter, and attention to them, tiled or not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.reference.operators import Array, Float64, float64, softmax_state

TILE = 64
Lines = tuple[NDArray[np.int32], NDArray[np.int32]]


def scores(q: Array, k: Array, *, scale: float) -> tuple[Float64, Float64]:
    """q [n, Hq, d], the last n of the rows of k [length, Hkv, d] → sums over columns and diagonals [Hq, length]."""
    n, heads, _ = q.shape
    length, group = len(k), heads // k.shape[1]
    q, k = float64(q, k)
    columns, diagonals = np.zeros((heads, length)), np.zeros((heads, length))
    for h in range(heads):
        for r in range(n):
            i = length - n + r
            dots = scale * k[: i + 1, h // group] @ q[r, h]
            p = np.exp(dots - dots.max())
            p /= p.sum()
            columns[h, : i + 1] += p
            diagonals[h, : i + 1] += p[::-1]
    return columns, diagonals


def best(score: Float64, count: int, forced: int) -> NDArray[np.int32]:
    """int32 [sets, count]: the first `forced` and the best of the others, rising; -1 where there are no more."""
    out = np.full((len(score), count), -1, np.int32)
    rank = score.copy()
    rank[:, :forced] = np.inf
    for row, own in zip(out, rank, strict=True):
        chosen = np.sort(np.argsort(-own, kind="stable")[:count])
        row[: len(chosen)] = chosen
    return out


def select(
    q: Array, k: Array, vertical: int, slash: int, *, scale: float, sink: int = 30, near: int = 100
) -> Lines:
    columns, diagonals = scores(q, k, scale=scale)
    return best(columns, vertical, sink), best(diagonals, slash, near)


def runs(end: int, distances: Array) -> list[tuple[int, int]]:
    """Keys that the tile of rows before `end` sees by its diagonals: each has a block of 64, blocks join."""
    found: list[tuple[int, int]] = []
    for distance in sorted({0, *(int(one) for one in distances if one >= 0)}, reverse=True):
        if distance >= end:
            continue
        stop = max(end - distance, TILE)
        if not found or stop > found[-1][1] + TILE:
            found.append((stop - TILE, stop))
        elif stop > found[-1][1]:
            found[-1] = (found[-1][0], found[-1][1] + TILE)
    return found


def visible(
    n: int, length: int, columns: Array, distances: Array, *, tiled: bool = True
) -> NDArray[np.bool_]:
    """[n, length]: what each row of one head sees. Not tiled: of a diagonal its one key."""
    i, j = np.arange(length - n, length)[:, None], np.arange(length)
    seen = np.zeros((n, length), bool)
    if tiled:
        for first in range(0, n, TILE):
            for start, stop in runs(length - n + first + TILE, distances):
                seen[first : first + TILE, start:stop] = True
    else:
        seen |= np.isin(i - j, [0, *distances])
    return (seen | np.isin(j, columns)) & (j <= i)


def attention(q: Array, k: Array, v: Array, lines: Lines, *, scale: float, tiled: bool = True) -> Float64:
    """q [n, Hq, d] are the last n of the rows of k, v [length, Hkv, d] → o [n, Hq, d]."""
    n, heads, _ = q.shape
    q, k, v = float64(q, k, v)
    o = np.zeros_like(q)
    for h in range(heads):
        kv = h // (heads // k.shape[1])
        seen = visible(n, len(k), lines[0][h], lines[1][h], tiled=tiled)
        dots = np.where(seen, scale * q[:, h] @ k[:, kv].T, -np.inf)
        o[:, h] = softmax_state(dots, v[:, kv])[0]
    return o
