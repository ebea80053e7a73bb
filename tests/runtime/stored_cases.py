"""Every operator that reads a cache, run on rows that are stored in one form or another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from h2o_runtime.attention import AttentionProvider
from h2o_runtime.attention.provider import AttentionShape, PartialSoftmax
from h2o_runtime.kv import KV
from h2o_runtime.operators import (
    BLOCK_SELECT,
    CACHED_ATTENTION,
    CACHED_CANDIDATE_SCORE,
    CHUNKED_INTRA_ATTENTION,
    LANDMARK_UPDATE,
    MEMORY_FUSED_ATTENTION,
    PAGE_ATTENTION,
    PAGE_BOUNDS,
    QUERY_SELECT,
    STEP_ATTENTION,
    SUBQUADRATIC_ATTENTION,
    TILED_MEMORY_ATTENTION,
    VERTICAL_SLASH_ATTENTION,
    VERTICAL_SLASH_SELECT,
)
from h2o_runtime.providers.host_operators import contiguous_rows, quantized

Array = np.ndarray[Any, Any]
Results: TypeAlias = tuple[Array, ...]
HQ, HKV, SPARE, PAGE, BLOCK = 6, 2, 20, 16, 24
SCALE = float(np.float32(0.3))


@dataclass(frozen=True)
class Stored:
    """Random rows of one length, and calls of the operators on them; queries and new rows are `dtype`."""

    length: int
    d: int
    dtype: str = "float32"

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(HQ, HKV, self.d, SCALE, np.dtype(self.dtype))

    def draw(self, *shape: int) -> Array:
        numbers = np.random.default_rng(sum(shape)).standard_normal((*shape, self.d))
        return numbers.astype(np.float32).astype(self.dtype)

    def rows(self, form: str) -> KV:
        """Of that dtype. Those from `length` on are not written: not numbers, or the largest integers."""
        k, v = self.draw(self.length + SPARE, HKV), self.draw(self.length + SPARE, HKV)[::-1].copy()
        free = slice(self.length, None)
        if form == "int8":
            (k8, k_scales), (v8, v_scales) = quantized(k), quantized(v)
            k8[free], v8[free], k_scales[free], v_scales[free] = 127, -127, np.nan, np.nan
            return KV(k8, v8, self.length, scales=(k_scales, v_scales))
        k, v = k.astype(form), v.astype(form)
        k[free], v[free] = np.nan, np.nan
        return KV(k, v, self.length)

    def as_floats(self, kv: KV) -> KV:
        """The same numbers as plain rows of the model's dtype."""
        poison = np.full((SPARE, HKV, self.d), np.nan, self.dtype)
        plain = contiguous_rows(replace(kv, length=self.length), np.dtype(self.dtype))
        return KV(*(np.concatenate([rows[: self.length], poison]) for rows in plain), self.length)

    def on_pages(self, kv: KV, seed: int, page: int = PAGE) -> KV:
        """The same rows on pages in a pool twice as large, in any order; entries behind them lead nowhere."""
        rng, n = np.random.default_rng(seed), self.length
        used = -(-n // page)
        table = rng.permutation(2 * used)[:used].astype(np.int32)
        at = table[np.arange(n) // page].astype(np.int64) * page + np.arange(n) % page

        def spread(rows: Array) -> Array:
            poison = np.nan if rows.dtype.kind == "f" else 111
            out = np.full((2 * used * page, *rows.shape[1:]), poison, rows.dtype)
            out[at] = rows[:n]
            return out

        scales = kv.scales and (spread(kv.scales[0]), spread(kv.scales[1]))
        beyond = np.array([-1, 1 << 30], np.int32)
        return KV(spread(kv.k), spread(kv.v), n, np.concatenate([table, beyond]), page, scales)

    def memory(self, heads: int, slots: int) -> Array:
        rng = np.random.default_rng(slots)
        return np.sort(rng.permutation(self.length)[: heads * slots].reshape(heads, slots)).astype(np.int32)

    def cached(self, provider: AttentionProvider, kv: KV, n: int) -> Results:
        q = self.draw(n, HQ)
        o = np.full_like(q, np.nan)
        provider.run(CACHED_ATTENTION, kv, q=q, o=o)
        return (o,)

    def stepped(self, provider: AttentionProvider, kv: KV) -> Results:
        """The last row is appended as it attends: exactly what its numbers are stored as, whatever that is."""
        kv = replace(kv, **{name: tensor.copy() for name, tensor in kv.tensors.items() if name in "kv"},
                     scales=kv.scales and (kv.scales[0].copy(), kv.scales[1].copy()))  # fmt: skip
        k, v = (np.sign(self.draw(1, HKV)) * 2 for _ in range(2))
        q = self.draw(1, HQ)
        o = np.full_like(q, np.nan)
        provider.run(STEP_ATTENTION, kv, q=q, k=k.astype(self.dtype), v=v.astype(self.dtype), o=o)
        return (o,)

    def fused(self, provider: AttentionProvider, kv: KV, heads: int = HQ) -> Results:
        n, memory = 30, self.memory(heads, 15)
        q, k = self.draw(n, HQ), self.draw(n, HKV)
        m, l = np.empty((2, n, HQ), np.float32)
        state, colsum = PartialSoftmax(np.empty_like(q), m, l), np.empty(memory.shape, np.float32)
        provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=k, chunk_size=n, **state.out)
        provider.run(MEMORY_FUSED_ATTENTION, kv, q=q, memory=memory, **state.intra, colsum=colsum)
        return state.o, m, l, colsum

    def tiled(self, provider: AttentionProvider, kv: KV) -> Results:
        n, tile = 30, 12
        memory = np.stack([self.memory(HKV, slots)[:, :9] for slots in (9, 10, 11)])
        q, k = self.draw(n, HQ), self.draw(n, HKV)
        m, l = np.empty((2, n, HQ), np.float32)
        state = PartialSoftmax(np.empty_like(q), m, l)
        provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=k, chunk_size=n, **state.out)
        provider.run(
            TILED_MEMORY_ATTENTION, kv, q=q, memory=np.ascontiguousarray(memory), tile=tile, **state.intra
        )
        return state.o, m, l

    def voted(self, provider: AttentionProvider, kv: KV) -> Results:
        memory = self.memory(HKV, 21)
        votes, chunk = np.empty(memory.shape, np.float32), np.empty((50, HKV), np.float32)
        provider.run(
            CACHED_CANDIDATE_SCORE,
            kv,
            q_window=self.draw(9, HQ),
            k=self.draw(50, HKV),
            memory=memory,
            score_mem=votes,
            score_chunk=chunk,
        )
        return votes, chunk

    def chosen(self, provider: AttentionProvider, kv: KV, listed: int) -> Results:
        early = self.length // 2
        past = np.array([early, early, early if listed else early + 32], np.int64)
        candidates = np.zeros((3, HKV, listed), np.int32)
        candidates[:] = np.arange(early - listed, early)
        out = np.full((3, HKV, 40), -1, np.int32)
        provider.run(
            QUERY_SELECT,
            kv,
            q=self.draw(45, HQ),
            candidates=candidates,
            past=past,
            first=early + 16 * np.arange(3),
            tile=16,
            stride=2,
            reach=1,
            local=8,
            memory_next=out,
        )
        return (out,)

    def blocks(self, provider: AttentionProvider, kv: KV) -> Results:
        past = np.array([2 * self.length // 3, self.length], np.int64)
        out = np.full((2, HKV, 40), -1, np.int32)
        rule = {"tile": 16, "stride": 2, "block_size": 8, "local": 7}
        provider.run(BLOCK_SELECT, kv, q=self.draw(30, HQ), past=past, **rule, candidates=out)
        return (out,)

    def landmarks(self, provider: AttentionProvider, kv: KV) -> Results:
        k_mean, v_mean = np.full((2, -(-self.length // BLOCK), HKV, self.d), np.nan, np.float32)
        provider.run(
            LANDMARK_UPDATE,
            replace(kv, length=self.length // 2),
            k_mean=k_mean,
            v_mean=v_mean,
            start=0,
            block_size=BLOCK,
        )
        provider.run(
            LANDMARK_UPDATE, kv, k_mean=k_mean, v_mean=v_mean, start=self.length // 2, block_size=BLOCK
        )
        return k_mean, v_mean

    def subquadratic(self, provider: AttentionProvider, kv: KV, n: int) -> Results:
        k_mean, v_mean = self.landmarks(provider, self.as_floats(kv))
        q, first = self.draw(n, HQ), np.arange(7, dtype=np.int32)
        o = np.full_like(q, np.nan)
        provider.run(
            SUBQUADRATIC_ATTENTION,
            kv,
            q=q,
            k_mean=k_mean,
            v_mean=v_mean,
            global_rows=first,
            window=70,
            block_size=BLOCK,
            strides=1,
            count_bias=1,
            o=o,
        )
        return (o,)

    def bounds(self, provider: AttentionProvider, kv: KV) -> Results:
        low, high = np.full((2, -(-self.length // BLOCK), HKV, self.d), np.nan, np.float32)
        provider.run(
            PAGE_BOUNDS, replace(kv, length=self.length // 2), k_min=low, k_max=high, start=0, page_size=BLOCK
        )
        provider.run(PAGE_BOUNDS, kv, k_min=low, k_max=high, start=self.length // 2, page_size=BLOCK)
        return low, high

    def paged(self, provider: AttentionProvider, kv: KV) -> Results:
        last = (self.length - 1) // BLOCK
        pages = np.array([[0, 3, last - 1, last, -1], [1, 2, 3, 4, last]], np.int32)
        q = self.draw(1, HQ)
        o = np.full_like(q, np.nan)
        provider.run(PAGE_ATTENTION, kv, q=q, page_list=pages, page_size=BLOCK, o=o)
        return (o,)

    def lines(self, provider: AttentionProvider, kv: KV) -> Results:
        columns, distances = np.full((HQ, 20), -1, np.int32), np.full((HQ, 12), -1, np.int32)
        provider.run(
            VERTICAL_SLASH_SELECT,
            kv,
            q=self.draw(20, HQ),
            sink=2,
            near=3,
            columns=columns,
            distances=distances,
        )
        q = self.draw(130, HQ)
        o = np.full_like(q, np.nan)
        provider.run(VERTICAL_SLASH_ATTENTION, kv, q=q, columns=columns, distances=distances, o=o)
        return columns, distances, o


Operators: TypeAlias = dict[str, Callable[[Stored, AttentionProvider, KV], Results]]
OPERATORS: Operators = {
    "one token": lambda stored, provider, kv: stored.cached(provider, kv, 1),
    "a few tokens": lambda stored, provider, kv: stored.cached(provider, kv, 4),
    "many tokens": lambda stored, provider, kv: stored.cached(provider, kv, 90),
    "a step": Stored.stepped,
    "memory": Stored.fused,
    "memory of a group": lambda stored, provider, kv: stored.fused(provider, kv, HKV),
    "memory of tiles": Stored.tiled,
    "votes": Stored.voted,
    "queries choose": lambda stored, provider, kv: stored.chosen(provider, kv, 0),
    "queries choose of a list": lambda stored, provider, kv: stored.chosen(provider, kv, 70),
    "queries choose blocks": Stored.blocks,
    "page bounds": Stored.bounds,
    "page attention": Stored.paged,
}
ON_CPUS: Operators = OPERATORS | {  # with a kernel for CPUs
    "landmarks": Stored.landmarks,
    "subquadratic step": lambda stored, provider, kv: stored.subquadratic(provider, kv, 1),
    "subquadratic": lambda stored, provider, kv: stored.subquadratic(provider, kv, 90),
    "lines": Stored.lines,
}
# Each that has a kernel of its own for a head size, on few queries.
OF_A_HEAD_SIZE: Operators = {
    "one token": lambda stored, provider, kv: stored.cached(provider, kv, 1),
    "many tokens": lambda stored, provider, kv: stored.cached(provider, kv, 20),
    "a step": Stored.stepped,
    "memory": Stored.fused,
    "memory of a group": lambda stored, provider, kv: stored.fused(provider, kv, HKV),
    "queries choose": lambda stored, provider, kv: stored.chosen(provider, kv, 0),
    "page attention": Stored.paged,
}


def assert_alike(got: Results, want: Results, share: float = 2e-5) -> None:
    """Numbers within that share of the largest; choices equal, but for a few where numbers are rough."""
    for ours, theirs in zip(got, want, strict=True):
        if theirs.dtype == np.int32:
            assert (ours != theirs).mean() <= (0 if share < 1e-4 else 0.1)
        else:
            difference = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max()
            assert difference <= share * np.abs(theirs.astype(np.float64)).max()
