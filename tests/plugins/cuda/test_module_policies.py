"""Operators of the sparse policies other than h2o, in h2o_plugins._cuda under the emulation."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from tests.plugins.cuda.test_module_operators import Model, Shape, assert_close
from tests.reference import lines, quest, subquadratic
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


def test_lines_and_attention_to_them(model: Model) -> None:
    n, vertical, slash = 9, 8, 60
    q, k, v = model.rows(n, model.Hq), model.rows(CAPACITY, model.Hkv), model.rows(CAPACITY, model.Hkv)
    keys = {"k_cache": model.put(k), "capacity": CAPACITY}
    one = {"n": n, "q": model.put(q), "length": model.put(np.array([LENGTH], np.int64))}
    columns, distances = (model.put_empty(model.Hq, count, dtype=np.int32) for count in (vertical, slash))
    lists = {"vertical": vertical, "columns": columns, "slash": slash, "distances": distances}
    select, attend = model.kernels.vertical_slash_select, model.kernels.vertical_slash_attention
    room = model.workspace(model.kernels.vertical_slash_select_workspace(n, CAPACITY))
    select(model.stream, **one, **keys, **lists, sink=3, near=4, **room)
    found = tuple(
        model.get(at, model.Hq, count, dtype=np.int32)
        for at, count in ((columns, vertical), (distances, slash))
    )
    expected = lines.select(q, k[:LENGTH], vertical, slash, scale=model.scale, sink=3, near=4)
    np.testing.assert_array_equal(found[1], expected[1])  # all that there are
    by_column = lines.scores(q, k[:LENGTH], scale=model.scale)[0]
    for mine, theirs, score in zip(found[0], expected[0], by_column, strict=True):
        assert score[mine].sum() > 0.999 * score[theirs].sum()
    o = model.put_empty(n, model.Hq, model.d, dtype=model.dtype)
    few = np.full((model.Hq, slash), -1, np.int32)
    few[:, 0] = 2
    room = model.workspace(model.kernels.vertical_slash_attention_workspace(n, CAPACITY, slash))
    attend(
        model.stream,
        **one,
        **keys,
        **lists | {"distances": model.put(few)},
        v_cache=model.put(v),
        o=o,
        **room,
    )
    exact = lines.attention(q, k[:LENGTH], v[:LENGTH], (found[0], few), scale=model.scale)
    assert_close(model.get(o, n, model.Hq, model.d, dtype=model.dtype), exact, half=model.half)
