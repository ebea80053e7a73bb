"""Calls of BlockSelect, for every provider, and what must come of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tests.reference import choices, operators

from h2o_runtime.attention.provider import AttentionProvider, AttentionShape
from h2o_runtime.kv import KV
from h2o_runtime.operators import BLOCK_SELECT

Array = np.ndarray[Any, Any]


@dataclass
class BlockCall:
    """Tiles whose past is a chunk's: chunks of `together` tiles behind `first` rows. `alike` key/value heads
    share a list; 0: each query head has one.
    """

    n: int
    first: int
    tile: int
    stride: int
    block_size: int
    local: int
    heavy: int
    together: int = 1
    kv_heads: int = 2
    group: int = 2
    alike: int = 1
    d: int = 16
    dtype: Any = np.float32
    softcap: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        heads = self.kv_heads * self.group
        self.scale = float(np.float32(self.d**-0.5))
        self.score_heads = self.kv_heads // self.alike if self.alike else heads
        tiles = -(-self.n // self.tile)
        self.past = self.first + np.arange(tiles, dtype=np.int64) // self.together * self.together * self.tile
        cap = int(self.past[-1]) + 3
        self.q = (2 * rng.standard_normal((self.n, heads, self.d))).astype(self.dtype)
        self.k = rng.standard_normal((cap, self.kv_heads, self.d)).astype(self.dtype)
        self.k[int(self.past[-1]) :] = np.nan  # nobody looks at these

    @property
    def attributes(self) -> dict[str, float]:
        names = ("scale", "tile", "stride", "block_size", "local", "heavy", "score_heads")
        return {name: getattr(self, name) for name in names}

    @property
    def inputs(self) -> dict[str, Array]:
        return {"q": self.q, "k_cache": self.k, "past": self.past}

    def run(self, provider: AttentionProvider, stored: KV | None = None) -> Array:
        """`stored`: the keys in another format."""
        sizes = self.q.shape[1], self.kv_heads, self.d, self.scale
        provider.activate(AttentionShape(*sizes, np.dtype(self.dtype), min(self.d, 512)))  # of latents
        out = np.full((len(self.past), self.score_heads, self.local + self.heavy), -1, np.int32)
        rule = {name: getattr(self, name) for name in ("tile", "stride", "block_size", "local")}
        kv = KV(self.k, self.k, len(self.k)) if stored is None else stored
        provider.run(BLOCK_SELECT, kv, q=self.q, past=self.past, **rule, candidates=out)
        return out

    def check(self, got: Array, rtol: float = 1e-5) -> None:
        """Raises AssertionError unless these are the reference's lists, but for near ties."""
        expected = choices.block_select(self.q, self.k, self.past, **self.attributes)  # type: ignore[arg-type]
        rule = {
            name: getattr(self, name) for name in ("scale", "stride", "block_size", "local", "score_heads")
        }
        for i, end in enumerate(self.past.tolist()):
            rows = self.q[i * self.tile : (i + 1) * self.tile]
            score = choices.block_score(rows, self.k, end, **rule)
            assert operators.same_but_for_near_ties(
                expected[i], got[i], score, stop=end, local=self.local, rtol=rtol
            )


def with_a_key_that_stands_out(**changes: Any) -> tuple[BlockCall, slice]:
    """A call whose queries attend to one key of a block, and that block's rows. Its other keys lie so far on the
    other side that other blocks have means of higher scores.
    """
    call = BlockCall(
        n=24, first=640, tile=8, stride=2, block_size=16, local=8, heavy=72, together=3, d=64, **changes
    )
    block, key = slice(320, 336), 327
    direction = np.sign(np.random.default_rng(1).standard_normal(call.d)).astype(np.float32)
    noise = np.random.default_rng(2).standard_normal(call.q.shape)
    call.q = (2 * direction + 0.1 * noise).astype(call.dtype)
    # Keys lie around a bias, as those of some models do.
    bias = 40 * np.random.default_rng(3).standard_normal(call.d).astype(np.float32)
    call.k[block] -= (1.2 * direction).astype(call.dtype)
    call.k[key] += (13.2 * direction).astype(call.dtype)
    call.k += bias.astype(call.dtype)
    return call, block


@st.composite
def block_calls(draw: st.DrawFn) -> BlockCall:
    local, heavy = draw(st.integers(0, 9)), draw(st.integers(1, 40))
    kv_heads = draw(st.integers(1, 3))
    return BlockCall(
        n=draw(st.integers(1, 90)),
        first=local + heavy + draw(st.integers(0, 90) | st.integers(200, 600)),
        tile=draw(st.integers(1, 30)),
        stride=draw(st.integers(1, 8)),
        block_size=draw(st.sampled_from([1, 3, 8, 16])),
        local=local,
        heavy=heavy,
        together=draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        group=draw(st.sampled_from([1, 2, 4])),
        alike=draw(st.sampled_from([0, 1, kv_heads])),
        d=draw(st.sampled_from([8, 24, 64])),
        dtype=draw(st.sampled_from([np.float32, np.float16])),
        seed=draw(st.integers(0, 1 << 20)),
    )
