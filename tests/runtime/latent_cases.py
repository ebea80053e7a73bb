"""Calls with values of another size than keys, or that are a part of them, for every provider."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tests.reference import choices, operators

from h2o_runtime.attention import AttentionProvider
from h2o_runtime.attention.provider import AttentionShape, PartialSoftmax, append_rows
from h2o_runtime.kv import KV
from h2o_runtime.operators import (
    CACHED_ATTENTION,
    CACHED_CANDIDATE_SCORE,
    CHUNKED_INTRA_ATTENTION,
    MEMORY_FUSED_ATTENTION,
    QUERY_SELECT,
    SCORED_ATTENTION,
    STEP_ATTENTION,
    TILED_MEMORY_ATTENTION,
)
from h2o_runtime.providers.host_operators import contiguous_rows, quantized

Array = np.ndarray[Any, Any]
Outputs: TypeAlias = dict[str, tuple[Array, Array]]  # what came, and what float64 says


@dataclass(frozen=True)
class Sizes:
    """A model's attention; `latent` has values in keys, one head of them serving all query heads."""

    query_heads: int
    kv_heads: int
    d: int
    dv: int
    latent: bool = False
    score_heads: int = 1
    dtype: str = "float32"
    form: str = ""  # of the cache; "": dtype
    seed: int = 0

    def __str__(self) -> str:
        """Names a test: of what follows the sizes, the form is last."""
        heads = f"{self.query_heads}of{self.kv_heads}-voting{self.score_heads}"
        return f"{heads}-{self.d}x{self.dv}-{self.dtype}-as-{self.form or self.dtype}"

    @property
    def scale(self) -> float:
        return float(np.float32(0.7 * self.d**-0.5))

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(
            self.query_heads, self.kv_heads, self.d, self.scale, np.dtype(self.dtype), self.dv
        )

    def draw(self, rows: int, heads: int, size: int) -> Array:
        rng = np.random.default_rng(self.seed + rows + size)
        return rng.standard_normal((rows, heads, size)).astype(self.dtype)

    def q(self, n: int) -> Array:
        return (2 * self.draw(n, self.query_heads, self.d)).astype(self.dtype)

    def new(self, n: int) -> tuple[Array, Array]:
        """Keys and values of new tokens."""
        k = self.draw(n, self.kv_heads, self.d)
        return (k, k) if self.latent else (k, self.draw(n, self.kv_heads, self.dv)[::-1].copy())

    def cache(self, length: int, spare: int = 20) -> KV:
        """Rows from `length` on are not numbers, or the largest integers."""
        k, v = self.new(length + spare)
        k, v = k.copy(), v.copy()
        if self.form == "int8":
            (k8, k_scales), (v8, v_scales) = quantized(k), quantized(v)
            k_scales[length:] = v_scales[length:] = np.nan
            keys, values = (k8, k_scales), (k8, k_scales) if self.latent else (v8, v_scales)
            return KV(keys[0], values[0], length, scales=(keys[1], values[1]))
        k[length:], v[length:] = np.nan, np.nan
        k, v = k.astype(self.form or self.dtype), v.astype(self.form or self.dtype)
        return KV(k, k if self.latent else v, length)

    def floats(self, kv: KV) -> tuple[Array, Array]:
        """What is stored, for the reference."""
        k, v = contiguous_rows(kv, np.dtype(np.float32), self.dv)
        return np.nan_to_num(k), np.nan_to_num(v)

    def values(self, k: Array, v: Array) -> Array:
        return v[:, :, : self.dv]

    def memory(self, below: int, slots: int) -> Array:
        rng = np.random.default_rng(slots)
        rows = [np.sort(rng.permutation(below)[:slots]) for _ in range(self.score_heads)]
        return np.array(rows, np.int32)

    def state(self, n: int) -> PartialSoftmax:
        o = np.full((n, self.query_heads, self.dv), np.nan, self.dtype)
        m, l = np.full((2, n, self.query_heads), np.nan, np.float32)
        return PartialSoftmax(o, m, l)


def intra(sizes: Sizes, provider: AttentionProvider, n: int = 45, chunk_size: int = 16) -> Outputs:
    q, (k, v) = sizes.q(n), sizes.new(n)
    state, colsum = sizes.state(n), np.full((n, sizes.score_heads), np.nan, np.float32)
    provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=v, chunk_size=chunk_size, **state.out, colsum=colsum)
    attributes = {"chunk_size": chunk_size, "scale": sizes.scale, "score_heads": sizes.score_heads}
    o, m, l, received = operators.chunked_intra_attention(q, k, sizes.values(k, v), **attributes)  # type: ignore[arg-type]
    unscored = sizes.state(n)
    provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=v, chunk_size=chunk_size, **unscored.out)
    return {
        "o": (state.o, o),
        "m": (state.m, m),
        "l": (state.l, l),
        "colsum": (colsum, received),
        "o without sums": (unscored.o, o),
    }


def fused(sizes: Sizes, provider: AttentionProvider, n: int = 30, slots: int = 21) -> Outputs:
    length = 90
    q, (k, v), kv = sizes.q(n), sizes.new(n), sizes.cache(length)
    memory, state = sizes.memory(length, slots), sizes.state(n)
    colsum = np.full(memory.shape, np.nan, np.float32)
    provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=v, chunk_size=n, **state.out)
    before = PartialSoftmax(state.o.copy(), state.m.copy(), state.l.copy())
    provider.run(MEMORY_FUSED_ATTENTION, kv, q=q, memory=memory, **state.intra, colsum=colsum)
    given = (q, *sizes.floats(kv), memory, before.o, before.m, before.l)
    o, received = operators.memory_fused_attention(*given, scale=sizes.scale)
    return {"o": (state.o, o), "colsum": (colsum, received)}


def tiled(sizes: Sizes, provider: AttentionProvider) -> Outputs:
    n, tile, length = 30, 12, 90
    q, (k, v), kv = sizes.q(n), sizes.new(n), sizes.cache(length)
    memory = np.ascontiguousarray(np.stack([sizes.memory(length, slots)[:, :9] for slots in (9, 10, 11)]))
    state = sizes.state(n)
    provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=v, chunk_size=n, **state.out)
    before = PartialSoftmax(state.o.copy(), state.m.copy(), state.l.copy())
    provider.run(TILED_MEMORY_ATTENTION, kv, q=q, memory=memory, tile=tile, **state.intra)
    expected = np.zeros(state.o.shape)
    for i, own in enumerate(memory):
        rows = slice(i * tile, (i + 1) * tile)
        part = before.rows(rows.start, rows.stop)
        given = (q[rows], *sizes.floats(kv), own, part.o, part.m, part.l)
        expected[rows], _ = operators.memory_fused_attention(*given, scale=sizes.scale)
    return {"o": (state.o, expected)}


def cached(sizes: Sizes, provider: AttentionProvider, n: int, length: int = 150) -> Outputs:
    q, kv = sizes.q(n), sizes.cache(length)
    o = np.full((n, sizes.query_heads, sizes.dv), np.nan, sizes.dtype)
    provider.run(CACHED_ATTENTION, kv, q=q, o=o)
    return {"o": (o, operators.cached_attention(q, *sizes.floats(kv), length, scale=sizes.scale))}


def stepped(sizes: Sizes, provider: AttentionProvider, length: int = 150) -> Outputs:
    """The new row is not in the cache yet."""
    q, kv, (k, v) = sizes.q(1), sizes.cache(length), sizes.new(3)
    new_k, new_v = k[2:].copy(), None if sizes.latent else v[2:].copy()
    separate, o = sizes.cache(length), np.full((1, sizes.query_heads, sizes.dv), np.nan, sizes.dtype)
    append_rows(provider, new_k, new_v, length - 1, separate)
    for part in kv.tensors.values():
        part[length - 1] = np.nan if part.dtype.kind == "f" else 99
    provider.run(STEP_ATTENTION, kv, q=q, k=new_k, v=new_v, o=o)
    for name, part in kv.tensors.items():
        np.testing.assert_array_equal(part[:length], separate.tensors[name][:length])
    return {"o": (o, operators.cached_attention(q, *sizes.floats(kv), length, scale=sizes.scale))}


def votes(sizes: Sizes, provider: AttentionProvider) -> Outputs:
    length = 90
    q, (k, _), kv, memory = sizes.q(9), sizes.new(50), sizes.cache(length), sizes.memory(length, 21)
    of_memory, of_chunk = np.full((sizes.score_heads, 21), np.nan), np.full((50, sizes.score_heads), np.nan)
    got = of_memory.astype(np.float32), of_chunk.astype(np.float32)
    provider.run(
        CACHED_CANDIDATE_SCORE, kv, q_window=q, k=k, memory=memory, score_mem=got[0], score_chunk=got[1]
    )
    keys, values = sizes.floats(kv)
    k_mem, _ = operators.memory_gather(keys, values, memory)
    expected = operators.candidate_score(q, k, k_mem, scale=sizes.scale)
    return {"of memory": (got[0], expected[0]), "of chunk": (got[1], expected[1])}


def scored(sizes: Sizes, provider: AttentionProvider) -> Outputs:
    length = 150
    q, kv = sizes.q(1), sizes.cache(length)
    seen = np.full((len(kv.k), sizes.kv_heads), np.nan, np.float32)
    o = np.full((1, sizes.query_heads, sizes.dv), np.nan, sizes.dtype)
    provider.run(
        SCORED_ATTENTION,
        KV(kv.k, kv.v, length, scales=kv.scales, seen=seen),
        q=q,
        o=o,
        seen=KV(kv.k, kv.v, length, scales=kv.scales, seen=seen).seen,
    )
    keys, values = sizes.floats(kv)
    nothing = np.zeros((sizes.kv_heads, 0, sizes.d))
    _, received = operators.candidate_score(q, keys[:length], nothing, scale=sizes.scale)
    exact = operators.cached_attention(q, keys, values, length, scale=sizes.scale)
    return {"o": (o, exact), "seen": (seen[:length], received)}


def chosen(sizes: Sizes, provider: AttentionProvider, listed: int) -> None:
    """Raises AssertionError unless the sets are the reference's, but for near ties."""
    tile, local, length = 16, 8, 120
    q, kv = sizes.q(45), sizes.cache(length)
    past, first = np.array([70, 70, 70 if listed else 102], np.int64), 70 + tile * np.arange(3)
    candidates = np.zeros((3, sizes.score_heads, listed), np.int32)
    candidates[:] = np.arange(70 - listed, 70)
    out = np.full((3, sizes.score_heads, 24), -1, np.int32)
    provider.run(
        QUERY_SELECT,
        kv,
        q=q,
        candidates=candidates,
        past=past,
        first=first,
        tile=tile,
        stride=2,
        reach=1,
        local=local,
        memory_next=out,
    )
    keys, _ = sizes.floats(kv)
    attributes = {"scale": sizes.scale, "stride": 2, "reach": 1}
    own = {"tile": tile, "local": local, "heavy": 16, "score_heads": sizes.score_heads}
    expected = choices.query_select(q, keys, candidates, past, first, **attributes, **own)  # type: ignore[arg-type]
    for i, end in enumerate(past.tolist()):
        rows, begin = q[i * tile : (i + 1) * tile], int(first[i])
        score = choices.query_score(rows, keys, candidates[i], end, begin, **attributes)  # type: ignore[arg-type]
        assert operators.same_but_for_near_ties(expected[i], out[i], score, stop=end, local=local, rtol=1e-4)


def appended(sizes: Sizes, provider: AttentionProvider) -> None:
    """Raises AssertionError unless new rows are stored, those before stay, and the last comes as a step's does."""
    kv = sizes.cache(40)
    before, _ = sizes.floats(kv)
    k, v = sizes.new(9)
    append_rows(provider, k[:8], None if sizes.latent else v[:8], 40, kv)
    append_rows(provider, k[8:], None if sizes.latent else v[8:], np.array([48], np.int64), kv)
    keys, values = sizes.floats(KV(kv.k, kv.v, 49, scales=kv.scales))
    atol = {"float16": 2e-3, "int8": 0.03}.get(sizes.form or sizes.dtype, 0.0)
    np.testing.assert_array_equal(keys[:40], before[:40])
    np.testing.assert_allclose(keys[40:49], k.astype(np.float32), atol=atol)
    np.testing.assert_allclose(values[40:49], sizes.values(k, v).astype(np.float32), atol=atol)


CALLS: dict[str, Callable[[Sizes, AttentionProvider], Outputs]] = {
    "intra": intra,
    "memory": fused,
    "memory of tiles": tiled,
    "one token": lambda sizes, provider: cached(sizes, provider, 1),
    "a few tokens": lambda sizes, provider: cached(sizes, provider, 3),
    "many tokens": lambda sizes, provider: cached(sizes, provider, 70),
    "a step": stepped,
}
SCORED = {"votes": votes, "scored": scored}  # not where a score head spans several key/value heads


def check(sizes: Sizes, outputs: Outputs) -> None:
    """float32: the tolerance of its kernels. float16 outputs may be off by their own rounding, twice.

    Where a float16 model's rows are integers, they are rounded to float16 on the way.
    """
    rough = sizes.dtype == "float16" and sizes.form == "int8"
    for name, (got, want) in outputs.items():
        assert got.shape == want.shape, name
        assert np.isfinite(got).all(), name
        difference = np.abs(got.astype(np.float64) - want)
        if rough:
            assert difference.max() <= 4e-3 * np.abs(want).max(), name
        elif got.dtype == np.float16:
            assert difference.max() <= 2 * np.finfo(np.float16).eps * np.abs(want).max(), name
        else:
            assert difference.max() <= 2e-5 * np.abs(want).max(), name
            assert np.linalg.norm(difference) <= 2e-6 * np.linalg.norm(want), name


def check_all(sizes: Sizes, provider: AttentionProvider) -> None:
    """Every operator."""
    spanning = sizes.score_heads not in (sizes.kv_heads, sizes.query_heads)
    for name, call in {**CALLS, **({} if spanning else SCORED)}.items():
        if (name, sizes.form) != ("scored", "int8"):  # no cache asks for it
            check(sizes, call(sizes, provider))
    for listed in (0, 50):
        chosen(sizes, provider, listed)
    appended(sizes, provider)


# Hkv 1 with values in the keys is how latents are attended to; Hkv = Hq what they are expanded to.
TINY = (
    Sizes(4, 1, 40, 32, latent=True),
    Sizes(4, 1, 40, 32, latent=True, score_heads=4),
    Sizes(4, 4, 24, 16),
    Sizes(4, 4, 24, 12, score_heads=4),
    Sizes(4, 4, 24, 12, form="int8"),
    Sizes(4, 4, 16, 24, score_heads=2),
    Sizes(8, 4, 48, 32, score_heads=2),
    Sizes(8, 4, 48, 32, score_heads=8),
    Sizes(6, 2, 32, 32, score_heads=1),
    Sizes(5, 1, 40, 32, latent=True, form="float16"),
    Sizes(5, 1, 40, 32, latent=True, form="int8"),
    Sizes(4, 1, 40, 32, latent=True, dtype="float16"),
    Sizes(4, 4, 24, 12, dtype="float16"),
)
FULL_SIZE = (
    Sizes(16, 1, 576, 512, latent=True),
    Sizes(4, 4, 192, 128),
    Sizes(20, 1, 576, 512, latent=True, form="float16"),
)
