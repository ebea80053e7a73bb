"""Attention whose scores a tanh caps, on the native CPU kernels: against float64 and the ONNX function bodies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plugins.native_cases import PRECISIONS, Array, Case, per_query_head

from h2o_runtime.attention.provider import AttentionShape
from h2o_runtime.kv import KV
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import (
    CACHED_ATTENTION,
    PAGE_ATTENTION,
    SUBQUADRATIC_ATTENTION,
    VERTICAL_SLASH_ATTENTION,
    VERTICAL_SLASH_SELECT,
)

h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

from h2o_runtime.providers.native import NativeCpuProvider  # noqa: E402

HQ, HKV, D, CAP = 6, 2, 32, 1.5
ROWS = 150


def capped_attention(case: Case, q: Array, k: Array, v: Array, cap: float) -> Array:
    """Of the last rows, in float64: q [n, Hq, d], k and v [keys, Hq, d]."""
    s = np.einsum("nhd,khd->nhk", case.factor(q, float(np.float32(case.scale))), case.factor(k))
    s = cap * np.tanh(s / cap)
    n, keys = len(q), len(k)
    s = np.where((np.arange(keys) <= np.arange(keys - n, keys)[:, None])[:, None], s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    out: Array = np.einsum("nhk,khd->nhd", p / p.sum(axis=-1, keepdims=True), case.factor(v))
    return out


@pytest.mark.parametrize("cap", [0.5, 30.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("precision", "isa"), [("float32", "scalar"), *PRECISIONS])
def test_scores_stay_below_the_cap(precision: Any, isa: str | None, dtype: Any, cap: float) -> None:
    """One row, a few, and blocks of many; scores of either sign that are far above the cap, and far below."""
    case = Case(4, 2, 40, dtype, isa=isa, precision=precision, spread=8.0)
    scale = float(np.float32(case.scale))
    case.provider.activate(AttentionShape(4, 2, 40, scale, np.dtype(dtype), softcap=cap))
    for n, length in ((1, 77), (5, 300), (200, 403)):
        rounded = n > 5 or precision == "float32"  # a few rows are not multiplied in bfloat16
        truth = case if rounded else Case(4, 2, 40, dtype, spread=8.0)
        q, (k, v) = case.q(n), case.kv(length)
        o = np.full(q.shape, np.nan, q.dtype)
        case.provider.run(CACHED_ATTENTION, KV(k, v, length), q=q, o=o)
        keys, values = (per_query_head(rows, 4) for rows in (k, v))
        truth.check(o, capped_attention(truth, q, keys, values, cap), q.dtype, "o", values)


@pytest.fixture(scope="module")
def providers(tiny_bundle: Path) -> Iterator[tuple[Any, ...]]:
    pytest.importorskip("onnx")
    from h2o_runtime.bundles.bundle import Bundle
    from h2o_runtime.providers.functions import FunctionProvider

    both = NativeCpuProvider(2), FunctionProvider(Bundle.open(tiny_bundle), 2)
    for provider in both:
        provider.activate(AttentionShape(HQ, HKV, D, 0.5, np.dtype(np.float32), softcap=CAP))
    yield both
    for provider in both:
        provider.deactivate()


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def agree(providers: tuple[Any, ...], operator: Operator, n: int, **given: Any) -> None:
    kv = KV(random(ROWS, HKV, D), random(ROWS + 1, HKV, D)[1:].copy(), ROWS)
    q, found = random(n, HQ, D), []
    for provider in providers:
        found.append(np.full_like(q, np.nan))
        provider.run(operator, kv, q=q, o=found[-1], **given)
    assert np.abs(found[0] - found[1]).max() <= 2e-5 * np.abs(found[1]).max()


@pytest.mark.parametrize("n", [1, 100])
@pytest.mark.parametrize("count_bias", [0, 1])
def test_landmarks_and_strides(providers: tuple[Any, ...], n: int, count_bias: int) -> None:
    """What counts a landmark's tokens is added to its capped score."""
    pattern = {"window": 9, "block_size": 8, "strides": 1, "count_bias": count_bias}
    marks = {"k_mean": random(20, HKV, D), "v_mean": random(21, HKV, D)[1:].copy()}
    agree(providers, SUBQUADRATIC_ATTENTION, n, **pattern, **marks, global_rows=np.arange(3, dtype=np.int32))


def test_pages(providers: tuple[Any, ...]) -> None:
    pages = np.tile(np.array([0, 2, 7, 9, -1], np.int32), (HKV, 1))
    agree(providers, PAGE_ATTENTION, 1, page_list=pages, page_size=16)


def test_lines(providers: tuple[Any, ...]) -> None:
    columns, distances = (np.empty((HQ, size), np.int32) for size in (12, 9))
    chosen = []
    for provider in providers:
        kv = KV(random(ROWS, HKV, D), random(ROWS, HKV, D), ROWS)
        lines = {"columns": columns.copy(), "distances": distances.copy()}
        provider.run(VERTICAL_SLASH_SELECT, kv, q=random(40, HQ, D), sink=2, near=2, **lines)
        chosen.append(lines)
    for name in ("columns", "distances"):
        np.testing.assert_array_equal(chosen[0][name], chosen[1][name])
    agree(providers, VERTICAL_SLASH_ATTENTION, 90, **chosen[0])
