"""Calls of QuerySelect, for every provider, and what must come of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tests.reference import choices, operators

from h2o_runtime.attention.provider import AttentionProvider, AttentionShape
from h2o_runtime.kv import KV
from h2o_runtime.operators import QUERY_SELECT

Array = np.ndarray[Any, Any]


@dataclass
class Call:
    """Tiles whose past is a chunk's, as the policy calls it: chunks of `tiles` tiles behind `before` rows, of which
    the first tile of q is number `skipped` of its chunk. Keys of every `loud`-th row are eight times as long, if it
    is not 0: more than one of the keys of a list may have all of a query's attention."""

    n: int
    before: int
    tile: int
    stride: int
    tiles: int
    reach: int
    local: int
    heavy: int
    listed: int  # candidates a list, 0: none
    kv_heads: int = 2
    group: int = 2
    by_query: bool = False
    lists: int = 0  # of a tile, 0: one a score head
    d: int = 16
    dtype: Any = np.float32
    seed: int = 0
    skipped: int = 0
    loud: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        heads = self.kv_heads * self.group
        self.scale = float(np.float32(self.d**-0.5))
        self.score_heads = heads if self.by_query else self.kv_heads
        self.lists = self.lists or self.score_heads
        number = self.skipped + np.arange(-(-self.n // self.tile), dtype=np.int64)
        self.first = self.before + number * self.tile
        self.past = self.before + number // self.tiles * self.tiles * self.tile
        end = int(self.first[0]) + self.n
        cap = end + 3
        self.q = (2 * rng.standard_normal((self.n, heads, self.d))).astype(self.dtype)
        self.k = rng.standard_normal((cap, self.kv_heads, self.d)).astype(self.dtype)
        self.k[:: self.loud or cap] *= 8 if self.loud else 1
        self.k[end:] = np.nan  # nobody looks at these
        self.candidates = np.zeros((len(self.past), self.lists, self.listed), np.int32)
        for i, past in enumerate(self.past.tolist() if self.listed else ()):
            for s in range(self.lists):
                early = rng.permutation(past - self.local)[: self.listed - self.local]
                window = np.arange(past - self.local, past)
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
            first=self.first,
            tile=self.tile,
            stride=self.stride,
            reach=self.reach,
            local=self.local,
            memory_next=out,
        )
        return out

    @property
    def inputs(self) -> dict[str, Array]:
        """Of a node; keys that nobody looks at are zero, for it multiplies by all."""
        keys = np.nan_to_num(self.k)
        lists = {"candidates": self.candidates, "past": self.past, "first": self.first}
        return {"q": self.q, "k_cache": keys, **lists}

    @property
    def attributes(self) -> dict[str, float]:
        names = ("scale", "tile", "stride", "reach", "local", "heavy", "score_heads")
        return {name: getattr(self, name) for name in names}

    def check(self, got: Array, rtol: float = 1e-5) -> None:
        """Raises AssertionError unless these are the reference's sets, but for near ties."""
        numbers = self.past, self.first
        expected = choices.query_select(self.q, self.k, self.candidates, *numbers, **self.attributes)  # type: ignore[arg-type]
        rule = {"scale": self.scale, "stride": self.stride, "reach": self.reach}
        for i, end in enumerate(self.past.tolist()):
            rows, begin = self.q[i * self.tile : (i + 1) * self.tile], int(self.first[i])
            candidates = self.candidates[i].repeat(self.score_heads // self.lists, axis=0)
            score = choices.query_score(rows, self.k, candidates, end, begin, **rule)  # type: ignore[arg-type]
            assert operators.same_but_for_near_ties(
                expected[i], got[i], score, stop=end, local=self.local, rtol=rtol
            )


@st.composite
def calls(draw: st.DrawFn) -> Call:
    local, heavy = draw(st.integers(0, 9)), draw(st.integers(1, 30))
    before = local + heavy + draw(st.integers(0, 60) | st.integers(100, 500))
    tiles = draw(st.integers(1, 3))
    kv_heads, group, by_query = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4])), draw(st.booleans())
    return Call(
        n=draw(st.integers(1, 90)),
        before=before,
        tile=draw(st.integers(1, 30)),
        stride=draw(st.integers(1, 8)),
        tiles=tiles,
        skipped=draw(st.integers(0, tiles - 1)),
        reach=draw(st.integers(0, 5)),
        local=local,
        heavy=heavy,
        listed=draw(st.sampled_from([0, local + heavy, before])),
        loud=draw(st.sampled_from([0, 0, 50])),
        kv_heads=kv_heads,
        group=group,
        by_query=by_query,
        lists=draw(st.sampled_from([0, 1, kv_heads, 2 * kv_heads if by_query and group > 1 else 0])),
        d=draw(st.sampled_from([8, 24, 64])),
        dtype=draw(st.sampled_from([np.float32, np.float16])),
        seed=draw(st.integers(0, 1 << 20)),
    )
