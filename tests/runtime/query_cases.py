"""Calls of QuerySelect, for every provider, and what must come of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tests.reference import operators

from h2o_runtime.attention.base import AttentionProvider, AttentionShape
from h2o_runtime.kv import KV
from h2o_runtime.operators import QUERY_SELECT

Array = np.ndarray[Any, Any]


@dataclass
class Call:
    """Tiles whose past is a chunk's, as the policy calls it: chunks of share · tile rows behind `first` rows."""

    n: int
    first: int
    tile: int
    stride: int
    share: int
    reach: int
    local: int
    heavy: int
    listed: int  # candidates a list, 0: none
    kv_heads: int = 2
    group: int = 2
    by_query: bool = False
    d: int = 16
    dtype: Any = np.float32
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        heads, chunk = self.kv_heads * self.group, self.share * self.tile
        self.scale = float(np.float32(self.d**-0.5))
        self.score_heads = heads if self.by_query else self.kv_heads
        tiles = -(-self.n // self.tile)
        self.past = self.first + np.arange(tiles, dtype=np.int64) // self.share * chunk
        cap = self.first + self.n + 3
        self.q = (2 * rng.standard_normal((self.n, heads, self.d))).astype(self.dtype)
        self.k = rng.standard_normal((cap, self.kv_heads, self.d)).astype(self.dtype)
        self.k[int(self.past[-1]) :] = np.nan  # nobody looks at these
        lists = -(-tiles // self.share)
        self.candidates = np.zeros((lists, self.score_heads, self.listed), np.int32)
        for i in range(lists if self.listed else 0):
            end = int(self.past[i * self.share])
            for s in range(self.score_heads):
                early = rng.permutation(end - self.local)[: self.listed - self.local]
                window = np.arange(end - self.local, end)
                self.candidates[i, s] = np.concatenate([np.sort(early), window])

    def run(self, provider: AttentionProvider) -> Array:
        shape = AttentionShape(self.q.shape[1], self.kv_heads, self.d, self.scale, np.dtype(self.dtype))
        provider.activate(shape)
        out = np.full((len(self.past), self.score_heads, self.local + self.heavy), -1, np.int32)
        provider.run(
            QUERY_SELECT,
            KV(self.k, self.k, len(self.k)),
            q=self.q,
            candidates=self.candidates,
            past=self.past,
            tile=self.tile,
            stride=self.stride,
            share=self.share,
            reach=self.reach,
            local=self.local,
            memory_next=out,
        )
        return out

    @property
    def inputs(self) -> dict[str, Array]:
        """Of a node; keys that nobody looks at are zero, for it multiplies by all."""
        keys = np.nan_to_num(self.k)
        return {"q": self.q, "k_cache": keys, "candidates": self.candidates, "past": self.past}

    @property
    def attributes(self) -> dict[str, float]:
        names = ("scale", "tile", "stride", "share", "reach", "local", "heavy")
        return {name: getattr(self, name) for name in names}

    def check(self, got: Array, rtol: float = 1e-5) -> None:
        """Raises AssertionError unless these are the reference's sets, but for near ties."""
        expected = operators.query_select(self.q, self.k, self.candidates, self.past, **self.attributes)  # type: ignore[arg-type]
        for i, end in enumerate(self.past.tolist()):
            rows, own = self.q[i * self.tile : (i + 1) * self.tile], self.candidates[i // self.share]
            score = operators.query_score(
                rows, self.k, own, end, scale=self.scale, stride=self.stride, reach=self.reach
            )
            assert operators.same_but_for_near_ties(
                expected[i], got[i], score, stop=end, local=self.local, rtol=rtol
            )


@st.composite
def calls(draw: st.DrawFn) -> Call:
    local, heavy = draw(st.integers(0, 9)), draw(st.integers(1, 30))
    first = local + heavy + draw(st.integers(0, 60))
    return Call(
        n=draw(st.integers(1, 90)),
        first=first,
        tile=draw(st.integers(1, 30)),
        stride=draw(st.integers(1, 8)),
        share=draw(st.integers(1, 3)),
        reach=draw(st.integers(0, 5)),
        local=local,
        heavy=heavy,
        listed=draw(st.sampled_from([0, local + heavy, first])),
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.sampled_from([1, 2, 4])),
        by_query=draw(st.booleans()),
        d=draw(st.sampled_from([8, 24, 64])),
        dtype=draw(st.sampled_from([np.float32, np.float16])),
        seed=draw(st.integers(0, 1 << 20)),
    )
