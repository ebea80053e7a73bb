"""Operators of the sparse policies other than h2o, in h2o_plugins._cuda under the emulation."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from tests.plugins.cuda.test_module_operators import Model, Shape, assert_close
from tests.reference import lines, quest, subquadratic
from tests.reference.subquadratic import Pattern

from h2o_runtime.operators import (
    LANDMARK_UPDATE,
    PAGE_ATTENTION,
    PAGE_BOUNDS,
    PAGE_SELECT,
    SUBQUADRATIC_ATTENTION,
    VERTICAL_SLASH_ATTENTION,
    VERTICAL_SLASH_SELECT,
)

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


def test_the_pattern_with_its_landmarks(model: Model) -> None:
    n, pattern = 9, Pattern(5, 4, (0, 7), count_bias=True)
    q, k, v = model.rows(n, model.Hq), model.rows(CAPACITY, model.Hkv), model.rows(CAPACITY, model.Hkv)
    blocks = -(-CAPACITY // 4)
    keys, values = model.put(k), model.put(v)
    means = {name: model.put_empty(blocks, model.Hkv, model.d) for name in ("k_mean", "v_mean")}
    for start, length in ((0, 18), (18, LENGTH)):
        model.run(LANDMARK_UPDATE, model.cache(keys, values, length), **means, start=start, block_size=4)
    for rows_of, name in ((k, "k_mean"), (v, "v_mean")):
        found = model.get(means[name])
        whole = LENGTH // 4
        assert_close(found[:whole], subquadratic.block_means(rows_of[:LENGTH], 4)[:whole])
    o = model.put_empty(n, model.Hq, model.d, dtype=model.dtype)
    numbers = {"window": 5, "block_size": 4, "strides": 1, "count_bias": 1}
    inputs = {"q": model.put(q), "global_rows": model.put(np.array([0, 7], np.int32))}
    kv = model.cache(keys, values, model.put(np.array([LENGTH], np.int64)))
    model.run(SUBQUADRATIC_ATTENTION, kv, **inputs, **means, **numbers, o=o)
    expected = subquadratic.attention(q, k[:LENGTH], v[:LENGTH], pattern, scale=model.scale)
    assert_close(model.get(o), expected, half=model.half)


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


def test_lines_and_attention_to_them(model: Model) -> None:
    n, vertical, slash = 9, 8, 60
    q, k, v = model.rows(n, model.Hq), model.rows(CAPACITY, model.Hkv), model.rows(CAPACITY, model.Hkv)
    kv, one = model.cache(model.put(k), model.put(v), LENGTH), {"q": model.put(q)}
    columns, distances = (model.put_empty(model.Hq, count, dtype=np.int32) for count in (vertical, slash))
    model.run(VERTICAL_SLASH_SELECT, kv, **one, columns=columns, distances=distances, sink=3, near=4)
    found = model.get(columns), model.get(distances)
    expected = lines.select(q, k[:LENGTH], vertical, slash, scale=model.scale, sink=3, near=4)
    np.testing.assert_array_equal(found[1], expected[1])  # all that there are
    by_column = lines.scores(q, k[:LENGTH], scale=model.scale)[0]
    for mine, theirs, score in zip(found[0], expected[0], by_column, strict=True):
        assert score[mine].sum() > 0.999 * score[theirs].sum()
    o = model.put_empty(n, model.Hq, model.d, dtype=model.dtype)
    few = np.full((model.Hq, slash), -1, np.int32)
    few[:, 0] = 2
    model.run(VERTICAL_SLASH_ATTENTION, kv, **one, columns=columns, distances=model.put(few), o=o)
    exact = lines.attention(q, k[:LENGTH], v[:LENGTH], (found[0], few), scale=model.scale)
    assert_close(model.get(o), exact, half=model.half)


def test_lines_of_a_cache_that_is_full(model: Model) -> None:
    """The last tile is partial, and a diagonal's block begins past the cache."""
    n, length = 26, 150
    q, k, v = model.rows(n, model.Hq), model.rows(length, model.Hkv), model.rows(length, model.Hkv)
    columns = np.full((model.Hq, 1), -1, np.int32)
    distances = np.tile(np.array([3, 40, 70], np.int32), (model.Hq, 1))
    o = model.put_empty(n, model.Hq, model.d, dtype=model.dtype)
    kv, chosen = model.cache(model.put(k), model.put(v), length), (columns, distances)
    given = {"q": model.put(q), "columns": model.put(columns), "distances": model.put(distances)}
    model.run(VERTICAL_SLASH_ATTENTION, kv, **given, o=o)
    assert_close(model.get(o), lines.attention(q, k, v, chosen, scale=model.scale), half=model.half)
