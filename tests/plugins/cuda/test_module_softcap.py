"""Scores that a tanh caps, by h2o_plugins._cuda under the emulation: against the CPU's kernels, which
tests/plugins/test_native_softcap.py compares with float64. The kernels' test program has the other operators."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.plugins.cuda.model import Array, Model, assert_close

import h2o_plugins
from h2o_runtime.attention.provider import AttentionShape
from h2o_runtime.kv import KV
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import BLOCK_SELECT, CACHED_CANDIDATE_SCORE, PAGE_ATTENTION, QUERY_SELECT

if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

from h2o_runtime.providers.native import NativeCpuProvider

HQ, HKV, D, CAP, ROWS = 6, 2, 32, 1.5, 150


@pytest.fixture
def model(emulated_cuda: ModuleType) -> Model:
    return Model(emulated_cuda, HQ, HKV, D, np.float32, softcap=CAP)


def both(model: Model, operator: Operator, outputs: dict[str, Array], **given: Any) -> list[dict[str, Array]]:
    """What the CPU's kernel and CUDA's give for the same inputs, of queries well beyond the cap."""
    cpu = NativeCpuProvider(2)
    cpu.activate(AttentionShape(HQ, HKV, D, model.scale, np.dtype(np.float32), softcap=CAP))
    random = np.random.default_rng(3)
    k, v = (random.standard_normal((ROWS, HKV, D)).astype(np.float32) for _ in range(2))
    expected = {name: array.copy() for name, array in outputs.items()}
    cpu.run(operator, KV(k, v, ROWS), **given, **expected)
    placed = {name: model.put(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    results = {name: model.put(array) for name, array in outputs.items()}
    model.run(operator, model.cache(model.put(k), model.put(v), ROWS), **placed, **results)
    return [expected, {name: model.get(array) for name, array in results.items()}]


def test_pages(model: Model) -> None:
    q = 6 * model.rows(1, HQ)
    pages = np.tile(np.array([0, 2, 7, 8, -1], np.int32), (HKV, 1))
    out = {"o": np.full_like(q, np.nan)}
    expected, got = both(model, PAGE_ATTENTION, out, q=q, page_list=pages, page_size=16)
    assert_close(got["o"], expected["o"].astype(np.float64))


def test_votes(model: Model) -> None:
    q, k = 6 * model.rows(5, HQ), model.rows(20, HKV)
    scores = {"score_mem": np.empty((HKV, 7), np.float32), "score_chunk": np.empty((20, HKV), np.float32)}
    memory = np.sort(np.random.default_rng(1).permuted(np.tile(np.arange(ROWS), (HKV, 1)), axis=1)[:, :7])
    given = {"q_window": q, "k": k, "memory": memory.astype(np.int32)}
    expected, got = both(model, CACHED_CANDIDATE_SCORE, scores, **given)
    for name in scores:
        assert_close(got[name], expected[name].astype(np.float64))


def test_memory_sets(model: Model) -> None:
    sizes = {"tile": 12, "stride": 4, "reach": 2, "local": 5, "heavy": 20, "score_heads": HKV}
    past, none = np.array([40, 40, 64], np.int64), np.empty((3, HKV, 0), np.int32)
    sets = {"memory_next": np.empty((3, HKV, 25), np.int32)}
    given = {"q": 6 * model.rows(34, HQ), "past": past, "first": np.array([40, 52, 64]), "candidates": none}
    expected, got = both(model, QUERY_SELECT, sets, **given, **sizes)
    np.testing.assert_array_equal(got["memory_next"], expected["memory_next"])


def test_candidates(model: Model) -> None:
    sizes = {"tile": 12, "stride": 4, "block_size": 8, "local": 5, "heavy": 20, "score_heads": HKV}
    past, lists = np.array([60, 60, 84, 84], np.int64), {"candidates": np.empty((4, HKV, 25), np.int32)}
    q = 2 * model.rows(
        42, HQ
    )  # variances grow with squares: larger ones reach the cap in many blocks, which tie
    expected, got = both(model, BLOCK_SELECT, lists, q=q, past=past, **sizes)
    np.testing.assert_array_equal(got["candidates"], expected["candidates"])
