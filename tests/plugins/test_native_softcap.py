"""Attention whose scores a tanh caps, on the native CPU kernels: against float64. Other
operators are compared with their function bodies, capped too, in tests/runtime/test_functions_and_kernels.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.plugins.native_cases import PRECISIONS, Array, Case, per_query_head

from h2o_runtime.attention.provider import AttentionShape
from h2o_runtime.kv import KV
from h2o_runtime.operators import CACHED_ATTENTION

h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)


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
