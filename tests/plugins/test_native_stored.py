"""Every native CPU operator that reads a cache, on rows stored as float16, as int8, and on pages.

What an operator makes of plain float32 rows, other tests compare with float64. Here the same numbers, stored
otherwise, must give the same result: to the bit where only their places differ.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.reference.golden import GOLDEN
from tests.runtime.stored_cases import HKV, HQ, ON_CPUS, PAGE, Array, Stored, assert_alike

from h2o_runtime.attention.provider import AttentionShape, append_rows
from h2o_runtime.kv import KV
from h2o_runtime.operators import CACHE_APPEND, CACHED_ATTENTION
from h2o_runtime.providers.host_operators import contiguous_rows, quantized, run_on_host

h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

from h2o_runtime.providers.native import NativeCpuProvider  # noqa: E402

ROWS = Stored(length=1100, d=40)
ISAS = ["scalar", "avx2", "avx512", "neon"]
FLOAT32 = np.dtype(np.float32)


def provider_on(isa: str | None = None) -> NativeCpuProvider:
    try:
        provider = NativeCpuProvider(2, isa=isa)
        provider.activate(ROWS.shape)
    except ValueError:
        pytest.skip(f"not on this machine: {isa}")
    return provider


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("name", ON_CPUS)
def test_shorter_rows_are_read_as_the_floats_that_they_are(name: str, dtype: str) -> None:
    provider, kv, run = provider_on(), ROWS.rows(dtype), ON_CPUS[name]
    assert_alike(run(ROWS, provider, kv), run(ROWS, provider, ROWS.as_floats(kv)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("name", ON_CPUS)
def test_places_change_no_bit(name: str, dtype: str) -> None:
    provider, kv, run = provider_on(), ROWS.rows(dtype), ON_CPUS[name]
    want = run(ROWS, provider, kv)
    assert all(np.isfinite(array).all() for array in want)
    for seed, page in ((1, PAGE), (2, PAGE), (3, 4)):
        for got, plain in zip(run(ROWS, provider, ROWS.on_pages(kv, seed, page)), want, strict=True):
            np.testing.assert_array_equal(got, plain)


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_stores_and_reads_alike(isa: str) -> None:
    provider, kv = provider_on(isa), ROWS.rows("int8")
    q, k, v = ROWS.draw(1, HQ), ROWS.draw(ROWS.length, HKV), ROWS.draw(ROWS.length, HKV)[::-1].copy()
    k[5, 1] = 0
    written = [array.copy() for array in (kv.k, kv.v, *(kv.scales or ()))]
    kv = KV(written[0], written[1], ROWS.length, scales=(written[2], written[3]))
    for start in (0, 1, 700):
        append_rows(provider, k[start:], v[start:], start, kv)
    for rows, eights, scales in ((k, kv.k, written[2]), (v, kv.v, written[3])):
        expected, shares = quantized(rows)
        np.testing.assert_allclose(scales[: ROWS.length], shares, rtol=1e-6)
        assert (
            np.abs(eights[: ROWS.length].astype(int) - expected).max() <= 1
        )  # an ulp of the scale, next to a half
        assert (eights[: ROWS.length] != expected).mean() < 1e-3
        assert (
            np.abs(eights[: ROWS.length] * scales[: ROWS.length, :, None] - rows).max()
            <= np.abs(rows).max() / 253
        )
    assert not kv.k[5, 1].any()
    assert written[2][5, 1] == 0
    o = np.empty_like(q)
    provider.run(CACHED_ATTENTION, kv, q=q, o=o)
    assert np.abs(o - exact(q, *contiguous_rows(kv, FLOAT32))).max() <= 2e-5


def exact(q: Array, k: Array, v: Array, scale: float = 0.3) -> Array:
    """In float64: q [1, Hq, d], k, v [n, Hkv, d]."""
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(rows.astype(np.float64), group, axis=1) for rows in (k, v))
    scores = np.einsum("hd,nhd->hn", q[0].astype(np.float64), keys) * float(np.float32(scale))
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("hn,nhd->hd", p / p.sum(axis=1, keepdims=True), values)[None]


def test_a_row_that_is_no_number_is_not_hidden() -> None:
    provider, kv = provider_on(), ROWS.rows("int8")
    k = ROWS.draw(2, HKV)
    k[0, 0, 3], k[1, 1, 3] = np.nan, np.inf
    append_rows(provider, k, k, 0, kv)
    assert kv.scales is not None
    np.testing.assert_array_equal(np.isnan(kv.scales[0][:2]), [[True, False], [False, True]])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_rows_are_appended_where_their_pages_are(dtype: str) -> None:
    provider, kv = provider_on(), ROWS.rows(dtype)
    pages = ROWS.on_pages(kv, 4)
    k, v = ROWS.draw(100, HKV), ROWS.draw(100, HKV)[::-1].copy()
    for first, count in ((3, 1), (500, 100)):
        for target in (kv, pages):
            append_rows(provider, k[:count], v[:count], first, target)
    for ours, theirs in zip(contiguous_rows(pages, FLOAT32), contiguous_rows(kv, FLOAT32), strict=True):
        np.testing.assert_array_equal(ours[: ROWS.length], theirs[: ROWS.length])
    written = KV(
        *(array.copy() for array in (pages.k, pages.v)), ROWS.length, pages.pages, PAGE, pages.scales
    )
    run_on_host(provider, CACHE_APPEND, written, {"k": k, "v": v, "first": 500})
    np.testing.assert_allclose(
        contiguous_rows(written, FLOAT32)[0],
        contiguous_rows(pages, FLOAT32)[0],
        atol=0.05 if dtype == "int8" else 1e-3,
    )


def test_what_is_no_cache_is_refused() -> None:
    provider, kv, q = provider_on(), ROWS.rows("int8"), ROWS.draw(1, HQ)
    o = np.empty_like(q)
    assert kv.scales is not None
    for bad, words in (
        (replace(kv, scales=None), "scales"),
        (replace(ROWS.rows("float16"), scales=kv.scales), "scales"),
        (replace(kv, scales=(kv.scales[0][:5], kv.scales[1])), "scales of k_cache"),
        (replace(kv, k=ROWS.rows("float16").k), "same dtype|scales"),
        (replace(ROWS.on_pages(kv, 1), page_rows=24), "power of two"),
        (replace(ROWS.on_pages(kv, 1), length=ROWS.length + 40), "out of range"),
        (replace(kv, k=kv.k.astype(np.int16)), "float32, float16 or int8"),
    ):
        with pytest.raises(ValueError, match=words):
            provider.run(CACHED_ATTENTION, bad, q=q, o=o)


# --- Independent data: several sequences on shared pages of 4 rows, what nobody wrote is NaN ----------------


def test_golden_sequences_on_pages() -> None:
    folder = GOLDEN / "paged"
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
            provider.run(CACHED_ATTENTION, KV(k, v, length, pages, rows), q=load["q"][i : i + 1], o=o)
            assert np.abs(o - load["out"][i]).max() <= 2e-5 * np.abs(load["out"][i]).max()
            outputs.append(o)
        np.testing.assert_array_equal(*outputs)
    o = np.empty_like(load["prefill_q"])
    provider.run(
        CACHED_ATTENTION, KV(k, v, int(load["seq_lens"][5]), tables[5], rows), q=load["prefill_q"], o=o
    )
    assert np.abs(o - load["prefill_out_seq5"]).max() <= 2e-5 * np.abs(load["prefill_out_seq5"]).max()
