"""Operators of quest in h2o_plugins._cuda under the emulation."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from tests.plugins.cuda.test_module_operators import Model, Shape, assert_close
from tests.reference import quest

from h2o_runtime.operators import PAGE_ATTENTION, PAGE_BOUNDS, PAGE_SELECT

LENGTH, CAPACITY = 45, 50


@pytest.fixture(
    params=[
        (4, 2, 64, np.float32, False),
        (4, 2, 64, np.float16, True),
        (3, 1, 80, np.float32, True),
        (2, 1, 160, np.float16, True),  # sizes without tiles
        (2, 2, 192, np.float32, False),
        (4, 2, 256, np.float16, False),
    ]
)
def model(emulated_cuda: ModuleType, request: pytest.FixtureRequest) -> Model:
    shape: Shape = request.param[:4]
    return Model(emulated_cuda, *shape, request.param[4])


@pytest.mark.parametrize("budget", [3, 20])
def test_a_tokens_best_pages(model: Model, budget: int) -> None:
    q, k, v = model.rows(1, model.Hq), model.rows(CAPACITY, model.Hkv), model.rows(CAPACITY, model.Hkv)
    blocks = -(-CAPACITY // 4)
    keys, values = model.put(k), model.put(v)
    k_min, k_max = (model.put_empty(blocks, model.Hkv, model.d) for _ in range(2))
    for start, length in ((0, 18), (18, LENGTH)):
        kv = model.cache(keys, values, length)
        model.run(PAGE_BOUNDS, kv, k_min=k_min, k_max=k_max, start=start, page_size=4)
    bounds = quest.page_bounds(k[:LENGTH], 4)
    for found, exact in zip((k_min, k_max), bounds, strict=True):
        np.testing.assert_array_equal(model.get(found)[: len(exact)], exact)
    pages = model.put_empty(model.Hs, budget, dtype=np.int32)
    kv, one = model.cache(keys, values, LENGTH), {"q": model.put(q), "page_size": 4, "page_list": pages}
    model.run(PAGE_SELECT, kv, **one, k_min=k_min, k_max=k_max)
    chosen = model.get(pages)
    np.testing.assert_array_equal(chosen, quest.page_select(q, *bounds, model.Hs, budget))
    o = model.put_empty(1, model.Hq, model.d, dtype=model.dtype)
    model.run(PAGE_ATTENTION, kv, **one, o=o)
    expected = quest.page_attention(q, k[:LENGTH], v[:LENGTH], chosen, 4, scale=model.scale)
    assert_close(model.get(o), expected, half=model.half)
