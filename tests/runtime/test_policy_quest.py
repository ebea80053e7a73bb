"""Page top-k decode: reference, function bodies, kernels and policy against one another and a published one's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests import bundles
from tests.reference import operators, quest
from tests.reference.golden import GOLDEN
from tests.runtime.operator_cases import Array, Case, cases, check, provider_for
from tests.runtime.test_policy_subquadratic import case_of, native

from h2o_runtime import Generator
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.operators import PAGE_ATTENTION, PAGE_BOUNDS, PAGE_SELECT
from h2o_runtime.policies.decode.full import FullDecode
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import Full


def bounds_of(provider: Any, k: Array, page: int, *cuts: int) -> tuple[Array, Array]:
    """Bounds of all rows, made in several calls; what nobody wrote is not a number."""
    shape = (-(-len(k) // page), *k.shape[1:])
    k_min, k_max = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    for start, stop in zip((0, *cuts), (*cuts, len(k)), strict=True):
        provider.run(PAGE_BOUNDS, KV(k, k, stop), k_min=k_min, k_max=k_max, start=start, page_size=page)
    return k_min, k_max


@settings(max_examples=9, deadline=None)
@given(case=cases(), page=st.integers(1, 20), data=st.data())
def test_bounds_row_by_row_are_those_made_at_once(
    tiny_bundle: Path, case: Case, page: int, data: st.DataObject
) -> None:
    k = case.kv()
    cuts = sorted(data.draw(st.sets(st.integers(0, case.n))))
    for provider in (native(case), provider_for(tiny_bundle, case)):
        for found in (bounds_of(provider, k, page), bounds_of(provider, k, page, *cuts)):
            for mine, exact in zip(found, quest.page_bounds(k, page), strict=True):
                np.testing.assert_array_equal(mine, exact)


@settings(max_examples=12, deadline=None)
@given(case=cases(), length=st.integers(1, 90), page=st.integers(1, 16), budget=st.integers(1, 12))
@example(case=Case(group=8, d=80), length=33, page=16, budget=2)
@example(case=Case(spread=0.0), length=64, page=4, budget=5)  # all bounds are equal
def test_a_token_attends_to_the_best_pages(
    tiny_bundle: Path, case: Case, length: int, page: int, budget: int
) -> None:
    q, k, v = case.q(1), case.kv(length + 3), case.kv(length + 3)
    k[length:] = v[length:] = np.nan  # what is not in use is not read
    k_min, k_max = quest.page_bounds(k[:length], page)
    bounds = tuple(x.astype(np.float32) for x in (k_min, k_max))
    upper = quest.upper_bounds(q, k_min, k_max, case.query_heads)
    for h in range(case.query_heads):
        scores = operators.float64(k[:length, h // case.group])[0] @ operators.float64(q[0, h])[0]
        assert (np.repeat(upper[h], page)[:length] >= scores - 1e-9).all()
    expected = quest.page_select(q, k_min, k_max, case.score_heads, budget)
    for provider in (native(case), provider_for(tiny_bundle, case)):
        kv, pages = KV(k, v, length), np.full((case.score_heads, budget), -7, np.int32)
        provider.run(PAGE_SELECT, kv, q=q, k_min=bounds[0], k_max=bounds[1], page_size=page, page_list=pages)
        assert same_but_for_near_ties(pages, expected, quest.upper_bounds(q, k_min, k_max, case.score_heads))
        o = np.full_like(q, np.nan)
        provider.run(PAGE_ATTENTION, kv, q=q, page_list=pages, page_size=page, o=o)
        rows = (q, k[:length], v[:length], pages, page)
        check(case, (o,), lambda: (quest.page_attention(*rows, scale=case.scale),))  # noqa: B023
        if budget * page >= length + page:
            check(case, (o,), lambda: (operators.cached_attention(q, k, v, length, scale=case.scale),))


def same_but_for_near_ties(pages: Array, expected: Array, bounds: Array) -> bool:
    """Entries that differ have bounds that float32 cannot tell apart."""
    for mine, theirs, bound in zip(pages, expected, bounds, strict=True):
        swapped = sorted(set(mine.tolist()) ^ set(theirs.tolist()))
        if (np.diff(mine[mine >= 0]) <= 0).any() or len(mine[mine >= 0]) != len(theirs[theirs >= 0]):
            return False
        if swapped and np.ptp(bound[swapped]) > 1e-5 * np.abs(bound).max():
            return False
    return True


def test_published_pages(tiny_bundle: Path) -> None:
    """The kernel's mode; pages of its evaluation mode by the reference alone: there the last one is not special."""
    folder = GOLDEN / "quest"
    q, k, v, k_min, k_max = (np.load(folder / f"{name}.npy") for name in ("q", "k", "v", "kmin", "kmax"))
    q, case = q[None], case_of(q[None], k)
    chosen = np.load(folder / "selected.npz")
    np.testing.assert_allclose(
        quest.upper_bounds(q, k_min, k_max, 6), np.load(folder / "bound.npy"), rtol=1e-5
    )
    late = quest.upper_bounds(np.load(folder / "chunk_q.npy")[-64:], *quest.page_bounds(k[:160], 16), 6)
    np.testing.assert_allclose(late, np.load(folder / "chunk_scores_lo160.npy"), rtol=1e-5)
    for provider in (native(case), provider_for(tiny_bundle, case)):
        for mine, theirs in zip(bounds_of(provider, k, 16), (k_min, k_max), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        for name, heads in (("q_head_96", 6), ("q_head_160", 6), ("kv_group_96", 2)):
            expected = chosen[f"kernel_{name}"][:: 6 // heads]
            pages, o = np.zeros((heads, expected.shape[1]), np.int32), np.empty_like(q)
            provider.run(
                PAGE_SELECT, KV(k, v, len(k)), q=q, k_min=k_min, k_max=k_max, page_size=16, page_list=pages
            )
            np.testing.assert_array_equal(pages, expected)
            provider.run(PAGE_ATTENTION, KV(k, v, len(k)), q=q, page_list=pages, page_size=16, o=o)
            if name == "q_head_96":
                np.testing.assert_allclose(o[0], np.load(folder / "out_kernel_q_head_96.npy"), atol=2e-6)
        for name in ("kernel_all_96", "eval_q_head_96"):
            o = np.empty_like(q)
            provider.run(
                PAGE_ATTENTION,
                KV(k, v, len(k)),
                q=q,
                page_list=chosen[name].astype(np.int32),
                page_size=16,
                o=o,
            )
            np.testing.assert_allclose(o[0], np.load(folder / f"out_{name}.npy"), atol=2e-6)


# --- The policy -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


def steps(bundle: Path, decoding: Quest | FullDecode, prompts: tuple[int, ...]) -> Array:
    """Logits after 30 tokens behind each of several beginnings of one text, the last one's."""
    ids = bundles.random_ids(150)
    with Generator.load(bundle, context=256, decoding=decoding) as generator:
        for prompt in prompts:
            logits = generator.prefill(ids[:prompt], Full())
            for token in ids[prompt : prompt + 30]:
                logits = generator.decode(int(token))
        return logits.copy()


@pytest.mark.parametrize("heads", ["query", "kv"])
def test_a_budget_for_everything_is_exact(bundle: Path, heads: Any) -> None:
    exact = steps(bundle, FullDecode(), (110,))
    everything = Quest(budget=160, dense_layers=0, heads=heads)
    assert bundles.relative_error(steps(bundle, everything, (110,)), exact) < 1e-5
    few = Quest(budget=32, dense_layers=0, heads=heads)
    assert bundles.relative_error(steps(bundle, few, (110,)), exact) > 1e-4
    every_layer = Quest(budget=16, dense_layers=99)
    assert bundles.relative_error(steps(bundle, every_layer, (110,)), exact) < 1e-6


def test_bounds_follow_a_prompt_that_goes_back(bundle: Path) -> None:
    few = Quest(budget=48, dense_layers=1)
    assert bundles.relative_error(steps(bundle, few, (110, 57)), steps(bundle, few, (57,))) < 1e-5


def test_bad_values_say_what_to_change() -> None:
    with pytest.raises(ConfigError, match="budget must be at least 1"):
        Quest(budget=0)
    with pytest.raises(ConfigError, match="page must be at least 1"):
        Quest(page=0)
    with pytest.raises(ConfigError, match="raise budget or lower page"):
        Quest(budget=8)
