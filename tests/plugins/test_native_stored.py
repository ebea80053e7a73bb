"""Every native CPU operator that reads a cache, on rows stored as float16, as int8, and on pages.

What an operator makes of plain float32 rows, other tests compare with float64. Here the same numbers, stored
otherwise, must give the same result: to the bit where only their places differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.golden import golden

from h2o_runtime.attention.base import AttentionShape, PartialSoftmax
from h2o_runtime.attention.host_rows import HostRows, plain_rows, quantized
from h2o_runtime.kv import KV

h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

from h2o_runtime.attention.native import NativeCpuProvider  # noqa: E402

Array = np.ndarray[Any, Any]
HQ, HKV, D = 6, 2, 40
LENGTH, SPARE, PAGE = 1100, 20, 16
ISAS = ["scalar", "avx2", "avx512", "neon"]
FLOAT32 = np.dtype(np.float32)


def provider_on(isa: str | None = None) -> NativeCpuProvider:
    try:
        provider = NativeCpuProvider(2, isa=isa)
        provider.activate(AttentionShape(HQ, HKV, D, float(np.float32(0.3)), FLOAT32))
    except ValueError:
        pytest.skip(f"not on this machine: {isa}")
    return provider


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def stored(dtype: str, rows: int = LENGTH + SPARE) -> KV:
    """Rows of that dtype, of which those from LENGTH on are not written: not numbers, or the largest integers."""
    shape = (rows, HKV, D)
    k, v = draw(*shape), draw(*shape)[::-1].copy()
    scales = None
    if dtype == "int8":
        (k8, ks), (v8, vs) = quantized(k), quantized(v)
        k8[LENGTH:], v8[LENGTH:], ks[LENGTH:], vs[LENGTH:] = 127, -127, np.nan, np.nan
        return KV(k8, v8, LENGTH, scales=(ks, vs))
    k, v = k.astype(dtype), v.astype(dtype)
    k[LENGTH:], v[LENGTH:] = np.nan, np.nan
    return KV(k, v, LENGTH, scales=scales)


def on_pages(kv: KV, seed: int, page: int = PAGE) -> KV:
    """The same rows on pages in a pool twice as large, in any order; entries behind the last page in use lead nowhere."""
    rng = np.random.default_rng(seed)
    used = -(-LENGTH // page)
    pool = 2 * used * page
    table = rng.permutation(2 * used)[:used].astype(np.int32)
    at = table[np.arange(LENGTH) // page].astype(np.int64) * page + np.arange(LENGTH) % page

    def spread(rows: Array) -> Array:
        poison = np.nan if rows.dtype.kind == "f" else 111
        out = np.full((pool, *rows.shape[1:]), poison, rows.dtype)
        out[at] = rows[:LENGTH]
        return out

    scales = kv.scales and (spread(kv.scales[0]), spread(kv.scales[1]))
    beyond = np.array([-1, 1 << 30], np.int32)
    return KV(spread(kv.k), spread(kv.v), LENGTH, np.concatenate([table, beyond]), page, scales)


def as_floats(kv: KV) -> KV:
    """The same numbers as plain float32 rows."""
    k, v = plain_rows(replace(kv, length=LENGTH), FLOAT32)
    poison = np.full((SPARE, HKV, D), np.nan, np.float32)
    return KV(np.concatenate([k[:LENGTH], poison]), np.concatenate([v[:LENGTH], poison]), LENGTH)


Operator = Callable[[NativeCpuProvider, KV], tuple[Array, ...]]


def cached(n: int) -> Operator:
    def run(provider: NativeCpuProvider, kv: KV) -> tuple[Array, ...]:
        q = draw(n, HQ, D)
        o = np.full_like(q, np.nan)
        provider.cached_attention(q, kv, o)
        return (o,)

    return run


def rows_of(heads: int, slots: int) -> Array:
    rng = np.random.default_rng(slots)
    return np.sort(rng.permutation(LENGTH)[: heads * slots].reshape(heads, slots)).astype(np.int32)


def fused(provider: NativeCpuProvider, kv: KV) -> tuple[Array, ...]:
    n, memory = 30, rows_of(HQ, 21)
    q, k = draw(n, HQ, D), draw(n, HKV, D)
    state = PartialSoftmax(np.empty_like(q), *np.empty((2, n, HQ), np.float32))
    provider.chunked_intra_attention(q, k, k, n, state, None)
    colsum = np.empty(memory.shape, np.float32)
    provider.memory_fused_attention(q, kv, memory, state, colsum)
    return state.o, state.m, state.l, colsum


def voted(provider: NativeCpuProvider, kv: KV) -> tuple[Array, ...]:
    memory = rows_of(HKV, 21)
    votes, chunk = np.empty(memory.shape, np.float32), np.empty((50, HKV), np.float32)
    provider.candidate_score(draw(9, HQ, D), draw(50, HKV, D), kv, memory, votes, chunk)
    return votes, chunk


def chosen(listed: int) -> Operator:
    def run(provider: NativeCpuProvider, kv: KV) -> tuple[Array, ...]:
        past = np.array([700, 700, LENGTH], np.int64)
        candidates = np.zeros((2, HKV, listed), np.int32)
        if listed:
            candidates[:] = np.arange(700 - listed, 700)
        out = np.full((3, HKV, 40), -1, np.int32)
        if listed:
            past[2] = 700
        provider.query_select(draw(45, HQ, D), kv, candidates, past, 16, 2, 2, 1, 8, 2, out)
        return (out,)

    return run


def landmarks(provider: NativeCpuProvider, kv: KV) -> tuple[Array, ...]:
    means = np.full((2, -(-LENGTH // 24), HKV, D), np.nan, np.float32)
    provider.landmark_update(replace(kv, length=500), *means, 0, 24)
    provider.landmark_update(kv, *means, 500, 24)
    return (means,)


def subquadratic(n: int) -> Operator:
    def run(provider: NativeCpuProvider, kv: KV) -> tuple[Array, ...]:
        (means,) = landmarks(provider, as_floats(kv))
        q = draw(n, HQ, D)
        o = np.full_like(q, np.nan)
        provider.subquadratic_attention(q, kv, *means, np.arange(7, dtype=np.int32), 70, 24, 1, 1, o)
        return (o,)

    return run


def bounds(provider: NativeCpuProvider, kv: KV) -> tuple[Array, ...]:
    both = np.full((2, -(-LENGTH // 24), HKV, D), np.nan, np.float32)
    provider.page_bounds(replace(kv, length=500), *both, 0, 24)
    provider.page_bounds(kv, *both, 500, 24)
    return (both,)


def paged(provider: NativeCpuProvider, kv: KV) -> tuple[Array, ...]:
    q, pages = draw(1, HQ, D), np.array([[0, 3, 44, 45, -1], [5, 6, 7, 30, 45]], np.int32)
    o = np.full_like(q, np.nan)
    provider.page_attention(q, kv, pages, 24, o)
    return (o,)


def lines(provider: NativeCpuProvider, kv: KV) -> tuple[Array, ...]:
    columns, distances = np.full((HQ, 20), -1, np.int32), np.full((HQ, 12), -1, np.int32)
    provider.vertical_slash_select(draw(20, HQ, D), kv, 2, 3, columns, distances)
    q = draw(150, HQ, D)
    o = np.full_like(q, np.nan)
    provider.vertical_slash_attention(q, kv, columns, distances, o)
    return columns, distances, o


OPERATORS: dict[str, Operator] = {
    "one token": cached(1),
    "a few tokens": cached(4),
    "many tokens": cached(90),
    "memory": fused,
    "votes": voted,
    "queries choose": chosen(0),
    "queries choose of a list": chosen(200),
    "landmarks": landmarks,
    "subquadratic step": subquadratic(1),
    "subquadratic": subquadratic(90),
    "page bounds": bounds,
    "page attention": paged,
    "lines": lines,
}


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("name", OPERATORS)
def test_shorter_rows_are_read_as_the_floats_that_they_are(name: str, dtype: str) -> None:
    provider, kv = provider_on(), stored(dtype)
    for got, want in zip(OPERATORS[name](provider, kv), OPERATORS[name](provider, as_floats(kv)), strict=True):
        if got.dtype == np.int32:
            np.testing.assert_array_equal(got, want)
        else:
            assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("name", OPERATORS)
def test_places_change_no_bit(name: str, dtype: str) -> None:
    provider, kv = provider_on(), stored(dtype)
    want = OPERATORS[name](provider, kv)
    assert all(np.isfinite(array).all() for array in want)
    for seed, page in ((1, PAGE), (2, PAGE), (3, 4)):
        for got, plain in zip(OPERATORS[name](provider, on_pages(kv, seed, page)), want, strict=True):
            np.testing.assert_array_equal(got, plain)


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_stores_and_reads_alike(isa: str) -> None:
    provider, kv = provider_on(isa), stored("int8")
    q, k, v = draw(1, HQ, D), draw(LENGTH, HKV, D), draw(LENGTH, HKV, D)[::-1].copy()
    k[5, 1] = 0
    written = [array.copy() for array in (kv.k, kv.v, *(kv.scales or ()))]
    kv = KV(written[0], written[1], LENGTH, scales=(written[2], written[3]))
    for start in (0, 1, 700):
        provider.cache_append(k[start:], v[start:], start, kv)
    for rows, eights, scales in ((k, kv.k, written[2]), (v, kv.v, written[3])):
        expected, shares = quantized(rows)
        np.testing.assert_allclose(scales[:LENGTH], shares, rtol=1e-6)
        assert np.abs(eights[:LENGTH].astype(int) - expected).max() <= 1  # an ulp of the scale, next to a half
        assert (eights[:LENGTH] != expected).mean() < 1e-3
        assert np.abs(eights[:LENGTH] * scales[:LENGTH, :, None] - rows).max() <= np.abs(rows).max() / 253
    assert not kv.k[5, 1].any()
    assert written[2][5, 1] == 0
    o = np.empty_like(q)
    provider.cached_attention(q, kv, o)
    assert np.abs(o - exact(q, *plain_rows(kv, FLOAT32))).max() <= 2e-5


def exact(q: Array, k: Array, v: Array, scale: float = 0.3) -> Array:
    """In float64: q [1, Hq, d], k, v [n, Hkv, d]."""
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(rows.astype(np.float64), group, axis=1) for rows in (k, v))
    scores = np.einsum("hd,nhd->hn", q[0].astype(np.float64), keys) * float(np.float32(scale))
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("hn,nhd->hd", p / p.sum(axis=1, keepdims=True), values)[None]


def test_a_row_that_is_no_number_is_not_hidden() -> None:
    provider, kv = provider_on(), stored("int8")
    k = draw(2, HKV, D)
    k[0, 0, 3], k[1, 1, 3] = np.nan, np.inf
    provider.cache_append(k, k, 0, kv)
    assert kv.scales is not None
    np.testing.assert_array_equal(np.isnan(kv.scales[0][:2]), [[True, False], [False, True]])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_rows_are_appended_where_their_pages_are(dtype: str) -> None:
    provider, kv = provider_on(), stored(dtype)
    pages = on_pages(kv, 4)
    k, v = draw(100, HKV, D), draw(100, HKV, D)[::-1].copy()
    for first, count in ((3, 1), (500, 100)):
        for target in (kv, pages):
            provider.cache_append(k[:count], v[:count], first, target)
    for ours, theirs in zip(plain_rows(pages, FLOAT32), plain_rows(kv, FLOAT32), strict=True):
        np.testing.assert_array_equal(ours[:LENGTH], theirs[:LENGTH])
    written = KV(*(array.copy() for array in (pages.k, pages.v)), LENGTH, pages.pages, PAGE, pages.scales)
    HostRows().cache_append(k, v, 500, written)
    np.testing.assert_allclose(
        plain_rows(written, FLOAT32)[0], plain_rows(pages, FLOAT32)[0], atol=0.05 if dtype == "int8" else 1e-3
    )


def test_what_is_no_cache_is_refused() -> None:
    provider, kv, q = provider_on(), stored("int8"), draw(1, HQ, D)
    o = np.empty_like(q)
    assert kv.scales is not None
    for bad, words in (
        (replace(kv, scales=None), "scales"),
        (replace(stored("float16"), scales=kv.scales), "scales"),
        (replace(kv, scales=(kv.scales[0][:5], kv.scales[1])), "scales of k_cache"),
        (replace(kv, k=stored("float16").k), "same dtype|scales"),
        (replace(on_pages(kv, 1), page_rows=24), "power of two"),
        (replace(on_pages(kv, 1), length=LENGTH + 40), "out of range"),
        (replace(kv, k=kv.k.astype(np.int16)), "float32, float16 or int8"),
    ):
        with pytest.raises(ValueError, match=words):
            provider.cached_attention(q, bad, o)


# --- Independent data: several sequences on shared pages of 4 rows, what nobody wrote is NaN ----------------


def test_golden_sequences_on_pages() -> None:
    folder = golden("paged")
    load = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    k, v, tables = load["k_cache_poisoned"], load["v_cache_poisoned"], load["block_tables"]
    blocks, rows, heads, d = k.shape
    provider = NativeCpuProvider(1)
    provider.activate(AttentionShape(load["q"].shape[1], heads, d, float(np.float32(d**-0.5)), FLOAT32))
    k, v = k.reshape(blocks * rows, heads, d), v.reshape(blocks * rows, heads, d)
    csr = np.load(folder / "flashinfer_csr.npz")
    for i, length in enumerate(load["seq_lens"].tolist()):
        if not length:
            continue
        listed = csr["kv_page_indices"][csr["kv_indptr"][i] : csr["kv_indptr"][i + 1]].astype(np.int32)
        outputs = []
        for pages in (tables[i], listed):
            o = np.empty_like(load["q"][i : i + 1])
            provider.cached_attention(load["q"][i : i + 1], KV(k, v, length, pages, rows), o)
            assert np.abs(o - load["out"][i]).max() <= 2e-5 * np.abs(load["out"][i]).max()
            outputs.append(o)
        np.testing.assert_array_equal(*outputs)
    o = np.empty_like(load["prefill_q"])
    provider.cached_attention(load["prefill_q"], KV(k, v, int(load["seq_lens"][5]), tables[5], rows), o)
    assert np.abs(o - load["prefill_out_seq5"]).max() <= 2e-5 * np.abs(load["prefill_out_seq5"]).max()
