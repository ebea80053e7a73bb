"""Operators of the subquadratic pattern and of page selection in h2o_plugins._cuda under the emulation."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from tests.plugins.cuda.test_module_operators import Model, Shape, assert_close
from tests.reference import quest, subquadratic
from tests.reference.subquadratic import Pattern

LENGTH, CAPACITY = 45, 50


@pytest.fixture(
    params=[(4, 2, 64, np.float32, False), (4, 2, 64, np.float16, True), (3, 1, 80, np.float32, True)]
)
def model(emulated_cuda: ModuleType, request: pytest.FixtureRequest) -> Model:
    shape: Shape = request.param[:4]
    return Model(emulated_cuda, *shape, request.param[4])


def test_the_pattern_with_its_landmarks(model: Model) -> None:
    n, pattern = 9, Pattern(5, 4, (0, 7), count_bias=True)
    q, k, v = model.rows(n, model.Hq), model.rows(CAPACITY, model.Hkv), model.rows(CAPACITY, model.Hkv)
    blocks = -(-CAPACITY // 4)
    cache = {"k_cache": model.put(k), "v_cache": model.put(v), "capacity": CAPACITY}
    means = {name: model.put_empty(blocks, model.Hkv, model.d) for name in ("k_mean", "v_mean")}
    bounds = model.put(np.array([0, 18, LENGTH], np.int64))
    for start in (bounds, bounds + 8):
        rows = {"start": start, "length": start + 8, "most_rows": LENGTH}
        model.kernels.landmark_update(model.stream, blocks=blocks, **cache, **means, **rows, block_size=4)
    for rows_of, name in ((k, "k_mean"), (v, "v_mean")):
        found = model.get(means[name], blocks, model.Hkv, model.d)
        whole = LENGTH // 4
        assert_close(found[:whole], subquadratic.block_means(rows_of[:LENGTH], 4)[:whole])
    o = model.put_empty(n, model.Hq, model.d, dtype=model.dtype)
    numbers = {"window": 5, "block_size": 4, "strides": 1, "count_bias": 1}
    inputs = {"q": model.put(q), "global_rows": model.put(np.array([0, 7], np.int32)), "slots": 2}
    model.kernels.subquadratic_attention(
        model.stream, n=n, **inputs, **cache, **means, length=bounds + 16, **numbers, o=o
    )
    expected = subquadratic.attention(q, k[:LENGTH], v[:LENGTH], pattern, scale=model.scale)
    assert_close(model.get(o, n, model.Hq, model.d, dtype=model.dtype), expected, half=model.half)


@pytest.mark.parametrize("budget", [3, 20])
def test_a_tokens_best_pages(model: Model, budget: int) -> None:
    q, k, v = model.rows(1, model.Hq), model.rows(CAPACITY, model.Hkv), model.rows(CAPACITY, model.Hkv)
    blocks = -(-CAPACITY // 4)
    cache = {"k_cache": model.put(k), "capacity": CAPACITY}
    k_min, k_max = (model.put_empty(blocks, model.Hkv, model.d) for _ in range(2))
    at = model.put(np.array([0, 18, LENGTH], np.int64))
    for start in (at, at + 8):
        rows = {"start": start, "length": start + 8, "most_rows": LENGTH}
        model.kernels.page_bounds(
            model.stream, blocks=blocks, **cache, k_min=k_min, k_max=k_max, **rows, page_size=4
        )
    bounds = quest.page_bounds(k[:LENGTH], 4)
    for found, exact in zip((k_min, k_max), bounds, strict=True):
        np.testing.assert_array_equal(model.get(found, blocks, model.Hkv, model.d)[: len(exact)], exact)
    pages = model.put_empty(model.Hs, budget, dtype=np.int32)
    one = {"q": model.put(q), "length": at + 16, "page_size": 4, "score_heads": model.Hs}
    model.kernels.page_select(
        model.stream,
        blocks=blocks,
        **one,
        k_min=k_min,
        k_max=k_max,
        budget=budget,
        page_list=pages,
        **model.workspace(model.kernels.page_select_workspace(blocks, model.Hs)),
    )
    chosen = model.get(pages, model.Hs, budget, dtype=np.int32)
    np.testing.assert_array_equal(chosen, quest.page_select(q, *bounds, model.Hs, budget))
    o = model.put_empty(1, model.Hq, model.d, dtype=model.dtype)
    model.kernels.page_attention(
        model.stream, slots=budget, **one, **cache, v_cache=model.put(v), page_list=pages, o=o
    )
    expected = quest.page_attention(q, k[:LENGTH], v[:LENGTH], chosen, 4, scale=model.scale)
    assert_close(model.get(o, 1, model.Hq, model.d, dtype=model.dtype), expected, half=model.half)
