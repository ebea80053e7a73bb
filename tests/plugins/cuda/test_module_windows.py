"""Attention with a window by h2o_plugins._cuda under the emulation, against float64 NumPy."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.plugins.cuda.test_module_operators import Model, assert_close
from tests.reference import operators

from h2o_runtime.operators import CACHED_ATTENTION, STEP_ATTENTION

WINDOWS = [1, 7, 64, 1000]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("n", [1, 5, 90])
@pytest.mark.parametrize("shape", [(4, 2, 64, np.float16), (4, 2, 64, np.float32), (3, 1, 40, np.float32)])
def test_a_row_sees_its_window(emulated_cuda: ModuleType, shape: Any, n: int, window: int) -> None:
    """Rows before the first window, and rows past the length, are not read."""
    model, capacity, length = Model(emulated_cuda, *shape, window=window), 140, 133
    q, k, v = model.rows(n, model.Hq), model.rows(capacity, model.Hkv), model.rows(capacity, model.Hkv)
    for rows in (k, v):
        rows[: max(0, length - n + 1 - window)] = rows[length:] = np.nan
    o = model.put_empty(n, model.Hq, model.d, dtype=model.dtype)
    model.run(CACHED_ATTENTION, model.cache(model.put(k), model.put(v), length), q=model.put(q), o=o)
    expected = operators.cached_attention(q, k, v, length, scale=model.scale, window=window)
    assert_close(model.get(o), expected, half=model.half)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shape", [(4, 2, 64, np.float16), (3, 1, 32, np.float32)])
def test_a_step_appends_its_row(emulated_cuda: ModuleType, shape: Any, window: int) -> None:
    model, capacity, length = Model(emulated_cuda, *shape, window=window), 300, 290
    q, k, v = model.rows(1, model.Hq), model.rows(capacity, model.Hkv), model.rows(capacity, model.Hkv)
    expected = operators.cached_attention(q, k, v, length, scale=model.scale, window=window)
    new = {"k": model.put(k[length - 1 : length]), "v": model.put(v[length - 1 : length])}
    k[length - 1], v[length - 1] = np.nan, np.nan
    o = model.put_empty(1, model.Hq, model.d, dtype=model.dtype)
    model.run(STEP_ATTENTION, model.cache(model.put(k), model.put(v), length), q=model.put(q), **new, o=o)
    assert_close(model.get(o), expected, half=model.half)
