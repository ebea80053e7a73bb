"""Attention with a window, on the native CPU kernels: against float64, and against rows stored otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plugins.native_cases import PRECISIONS, Array, Case, per_query_head, softmax_state
from tests.runtime.stored_cases import Stored, assert_alike

from h2o_runtime.attention.provider import AttentionShape
from h2o_runtime.kv import KV
from h2o_runtime.operators import CACHED_ATTENTION, STEP_ATTENTION
from h2o_runtime.providers.host_operators import quantized

h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

from h2o_runtime.providers.native import NativeCpuProvider  # noqa: E402

# (query heads, key/value heads, new rows, length, window)
CALLS = [
    (4, 2, 1, 7, 100),  # longer than the past
    (4, 2, 1, 700, 700),
    (4, 2, 1, 701, 700),
    (8, 1, 1, 1500, 33),  # decode
    (6, 2, 5, 40, 40),
    (6, 2, 5, 40, 3),  # rows see windows that have nothing in common
    (4, 4, 7, 1301, 600),
    (6, 2, 333, 333, 1),
    (6, 2, 333, 401, 130),
    (16, 1, 400, 900, 257),  # several ranges of rows
    (2, 1, 1900, 1900, 512),  # several blocks of keys a range
]


@pytest.mark.parametrize("isa", ["scalar", None])
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_row_sees_its_window(call: tuple[int, ...], isa: str | None) -> None:
    check(*call, d=24, isa=isa)


@pytest.mark.parametrize(("precision", "isa"), PRECISIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_every_precision(precision: Any, isa: str | None, dtype: Any) -> None:
    check(6, 2, 200, 403, 90, d=64, isa=isa, precision=precision, dtype=dtype)


@given(
    rows=st.integers(1, 150),
    past=st.integers(0, 400),
    window=st.integers(1, 600),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2)]),
)
@settings(max_examples=15, deadline=None)
def test_any_window(rows: int, past: int, window: int, heads: tuple[int, int]) -> None:
    check(*heads, rows, past + rows, window, d=8)


def check(Hq: int, Hkv: int, n: int, length: int, window: int, d: int, **kind: Any) -> None:
    kind.setdefault("dtype", np.float32)
    case = Case(Hq, Hkv, d, **kind)
    activate(case.provider, case, window)
    q, (k, v) = case.q(n), case.kv(length + 3)
    k[length:], v[length:] = np.nan, np.nan
    o = np.full(q.shape, np.nan, q.dtype)
    case.provider.run(CACHED_ATTENTION, KV(k, v, length), q=q, o=o)
    keys, values = (per_query_head(rows[:length], Hq) for rows in (k, v))
    for rows, seen in seen_by(n, length, window):
        expected, *_ = softmax_state(case, q[rows], keys, values, seen)
        case.check(o[rows], expected, q.dtype, "o", values)


def seen_by(n: int, length: int, window: int) -> Iterator[tuple[slice, Array]]:
    """Which keys the new rows see, a few rows at a time: bool [rows, length]."""
    for start in range(0, n, 256):
        rows = np.arange(start, min(start + 256, n))
        place = (length - n + rows)[:, None]
        key = np.arange(length)[None]
        yield slice(rows[0], rows[-1] + 1), (key <= place) & (key > place - window)


def activate(provider: NativeCpuProvider, case: Case, window: int) -> None:
    scale, dtype = float(np.float32(case.scale)), np.dtype(case.dtype)
    provider.activate(AttentionShape(case.Hq, case.Hkv, case.d, scale, dtype, window=window))


@pytest.mark.parametrize("window", [1, 70, 1099, 5000])
@pytest.mark.parametrize("n", [1, 4, 90])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_rows_stored_otherwise(dtype: str, n: int, window: int) -> None:
    """Shorter rows are read as the floats that they are, and places change no bit."""
    rows = Stored(length=1100, d=40)
    provider = NativeCpuProvider(2)
    provider.activate(replace(rows.shape, window=window))
    kv = rows.rows(dtype)
    want = rows.cached(provider, kv, n)
    assert_alike(want, rows.cached(provider, rows.as_floats(kv), n))
    for page in (4, 16):
        (got,) = rows.cached(provider, rows.on_pages(kv, 1, page), n)
        np.testing.assert_array_equal(got, want[0])


@pytest.mark.parametrize("window", [1, 40, 300, 301])
@pytest.mark.parametrize("stored", ["float32", "int8"])
def test_a_step_appends_its_row_and_sees_its_window(window: int, stored: str) -> None:
    case, length = Case(4, 2, 32, np.float32), 300
    activate(case.provider, case, window)
    q, (k, v), (new_k, new_v) = case.q(1), case.kv(length), case.kv(1)
    kv = KV(k, v, length)
    if stored == "int8":
        (k8, k_scales), (v8, v_scales) = quantized(k), quantized(v)
        kv = KV(k8, v8, length, scales=(k_scales, v_scales))
    stepped, plain = np.empty_like(q), np.empty_like(q)
    case.provider.run(STEP_ATTENTION, kv, q=q, k=new_k, v=new_v, o=stepped)
    case.provider.run(CACHED_ATTENTION, kv, q=q, o=plain)
    np.testing.assert_array_equal(stepped, plain)
    if stored == "float32":
        np.testing.assert_array_equal(k[-1:], new_k)
        ((_, seen),) = seen_by(1, length, window)
        expected, *_ = softmax_state(case, q, per_query_head(k, 4), per_query_head(v, 4), seen)
        case.check(stepped, expected, q.dtype, "o", v)


def test_what_is_out_of_sight_is_not_read() -> None:
    """Rows before the first window may be anything."""
    case = Case(4, 2, 32, np.float32)
    activate(case.provider, case, 60)
    for n in (1, 4, 200):
        q, (k, v) = case.q(n), case.kv(1000)
        want, got = np.empty_like(q), np.empty_like(q)
        case.provider.run(CACHED_ATTENTION, KV(k, v, 1000), q=q, o=want)
        k[: 1000 - n - 59], v[: 1000 - n - 59] = np.nan, np.nan
        case.provider.run(CACHED_ATTENTION, KV(k, v, 1000), q=q, o=got)
        np.testing.assert_array_equal(got, want)
