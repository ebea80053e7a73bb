"""How much of the cache a prompt keeps: decided by tokens and policy alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prefill import altered

from h2o_runtime.caches.reuse import (
    Prefix,
    Provenance,
    Reuse,
    ShortDifference,
    plan_reuse,
    same_arithmetic,
    shared_prefix,
    short_difference,
)
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query
from h2o_runtime.sessions.session import TokenRows

SPARSE = Query(chunk_size=8, batch_size=16, local=2, heavy=2, dense_tail=0)
FULL = Full()
NOTHING = Reuse(Prefix.NONE, 0)


def cache_of(tokens: Sequence[int], generated: Sequence[int] = ()) -> TokenRows:
    cache = TokenRows(256)
    cache.append(np.array(tokens, np.int64), generated=False)
    cache.append(np.array(generated, np.int64), generated=True)
    return cache


def plan(
    cached: Sequence[int], prompt: Sequence[int], policy: PrefillPolicy[Any], prefilled: int = -1
) -> Reuse:
    """The plan for `prompt` when the first `prefilled` of `cached` were one fresh prompt."""
    prefilled = len(cached) if prefilled < 0 else prefilled
    cache = cache_of(cached[:prefilled], cached[prefilled:])
    return plan_reuse(cache.known, Provenance.fresh(policy, prefilled), np.array(prompt, np.int64), policy)


# --- The cache's tokens -----------------------------------------------------------------------------------


def test_the_shared_prefix_ends_at_the_first_difference() -> None:
    cache = cache_of([5, 6, 7, 8])
    assert shared_prefix(cache.known, np.array([5, 6, 9, 8])) == 2
    assert shared_prefix(cache.known, np.array([5, 6])) == 2
    assert shared_prefix(cache.known, np.array([5, 6, 7, 8, 9])) == 4
    assert shared_prefix(cache.known, np.array([4])) == 0
    cache.truncate(1)
    assert shared_prefix(cache.known, np.array([5, 6])) == 1
    cache.truncate(3)  # truncating never brings tokens back
    assert cache.length == 1


def test_the_cache_knows_which_tokens_were_generated() -> None:
    cache = cache_of([1, 2], [3])
    cache.append(np.array([4]), generated=False)
    assert cache.tokens[:4].tolist() == [1, 2, 3, 4]
    assert cache.generated[:4].tolist() == [False, False, True, False]
    cache.truncate(2)
    cache.append(np.array([9]), generated=False)
    assert cache.generated[:3].tolist() == [False, False, False]


# --- Sparse prefill ---------------------------------------------------------------------------------------


def test_a_shared_beginning_is_kept_up_to_a_chunk_boundary() -> None:
    assert plan(range(20), [*range(19), 99], SPARSE) == Reuse(Prefix.BOUNDARY, 16)
    assert plan(range(20), [*range(15), 99], SPARSE) == Reuse(Prefix.BOUNDARY, 8)
    assert plan(range(20), [*range(7), 99], altered(SPARSE, score="colsum")) == NOTHING


def test_under_query_every_row_of_the_first_chunk_is_kept() -> None:
    assert plan(range(20), [*range(7), 99], SPARSE) == Reuse(Prefix.BOUNDARY, 7)
    assert plan(range(7), [*range(5), 99], altered(SPARSE, missed=0.5)) == Reuse(Prefix.BOUNDARY, 5)
    rounding = replace(Provenance.fresh(SPARSE, 20), rounded=True)
    assert plan_reuse(cache_of(range(20)).known, rounding, np.array([*range(7), 99]), SPARSE) == NOTHING


def test_under_query_a_tail_from_the_same_row_on_is_kept() -> None:
    policy = altered(SPARSE, tile=3, dense_tail=5)  # chunks of 8 rows are cut into 3, 3 and 2
    assert [policy.first_of_tail(n) for n in range(35, 41)] == [30, 30, 32, 32, 32, 35]
    for others in (3, 4, 5):
        assert plan(range(38), [*range(34), *[99] * others], policy) == Reuse(Prefix.BOUNDARY, 34)
    assert plan(range(38), [*range(34), *[99] * 6], policy) == Reuse(Prefix.BOUNDARY, 32)
    assert plan(range(38), [*range(34), *[99] * 2], policy) == Reuse(Prefix.BOUNDARY, 30)
    assert plan(range(38), [*range(37), 99], altered(policy, missed=0.5)) == Reuse(Prefix.BOUNDARY, 37)
    assert plan(range(39), range(39), policy, prefilled=38) == Reuse(Prefix.BOUNDARY, 38)


def test_an_interrupted_question_leaves_the_tail_that_it_found() -> None:
    policy = altered(SPARSE, tile=3, dense_tail=5)
    before, found = Provenance.fresh(policy, 38), Reuse(Prefix.BOUNDARY, 34)
    left = policy.after_interruption(found, 3, before)
    known = cache_of(range(34)).known
    assert plan_reuse(known, left, np.arange(37), policy) == found
    assert plan_reuse(known, left, np.arange(60), policy) == Reuse(Prefix.BOUNDARY, 32)


@pytest.mark.parametrize("change", [{"tile": 2, "missed": 0.5}, {"score": "colsum"}])
def test_what_asks_all_of_a_chunk_is_kept_up_to_its_end(change: dict[str, float | str]) -> None:
    policy = altered(SPARSE, **change)
    assert plan(range(40), [*range(31), 99], policy) == Reuse(Prefix.BOUNDARY, 24)


def test_a_cache_that_rounds_rows_is_kept_up_to_a_chunk_boundary() -> None:
    """Inside a chunk, rows would see keys that are not those of a fresh run."""
    policy, cache = altered(SPARSE, tile=2), cache_of(range(40))
    for rounded, kept in ((False, 30), (True, 24)):
        origin = replace(Provenance.fresh(policy, 40), rounded=rounded)
        plan = plan_reuse(cache.known, origin, np.array([*range(31), 99]), policy)
        assert plan == Reuse(Prefix.BOUNDARY, kept)


def test_rows_of_a_dense_tail_are_not_those_of_a_longer_prompt() -> None:
    policy = altered(SPARSE, dense_tail=6)
    # Of 28 tokens the last 6 saw everything: rows 0 … 21 are sparse.
    assert plan(range(28), [*range(25), *[99] * 40], policy) == Reuse(Prefix.BOUNDARY, 16)
    policy = altered(SPARSE, dense_tail=100, score="window", window=2)
    assert plan(range(28), [*range(25), *[99] * 40], policy) == NOTHING


@pytest.mark.parametrize("change", [{"heavy": 1}, {"dense_tail": 4}, {"score": "window", "window": 2}])
def test_another_policy_starts_afresh(change: dict[str, Any]) -> None:
    cache = cache_of(range(30))
    origin = Provenance.fresh(SPARSE, 30)
    other = altered(SPARSE, **change)
    assert plan_reuse(cache.known, origin, np.arange(40), other) == NOTHING
    assert plan_reuse(cache.known, origin, np.arange(40), FULL) == NOTHING


def test_the_batch_size_changes_no_arithmetic() -> None:
    other = altered(SPARSE, batch_size=64)
    assert same_arithmetic(SPARSE, other)
    assert not same_arithmetic(None, SPARSE)
    cache = cache_of(range(30))
    assert plan_reuse(cache.known, Provenance.fresh(SPARSE, 30), np.arange(40), other) == Reuse(
        Prefix.HISTORY, 30
    )


def test_policies_that_share_no_size_can_be_compared() -> None:
    small = Query(chunk_size=8, batch_size=8, local=2, heavy=2)
    assert not same_arithmetic(Query(), small)  # its chunk is larger than this batch
    assert not same_arithmetic(small, Query())


def test_after_an_interruption_only_its_boundary_is_sound() -> None:
    cache = cache_of(range(16))
    origin = Provenance.interrupted(SPARSE, 16)
    assert plan_reuse(cache.known, origin, np.arange(30), SPARSE) == Reuse(Prefix.BOUNDARY, 16)
    assert plan_reuse(cache.known, origin, np.array([*range(12), 99]), SPARSE) == Reuse(Prefix.BOUNDARY, 8)


# --- Full attention ---------------------------------------------------------------------------------------


def test_full_attention_runs_what_a_sparse_decode_made_again() -> None:
    cache, origin = cache_of(range(13), range(13, 20)), Provenance.fresh(FULL, 13).decoded(exact=False)
    assert plan_reuse(cache.known, origin, np.arange(25), FULL) == Reuse(Prefix.EXACT, 13)
    assert plan_reuse(cache.known, origin, np.arange(20), FULL) == Reuse(Prefix.EXACT, 13)
    assert plan_reuse(cache.known, origin, np.arange(9), FULL) == Reuse(Prefix.EXACT, 8)
    assert plan_reuse(cache.known, Provenance.fresh(FULL, 13), np.arange(20), FULL) == Reuse(Prefix.EXACT, 19)


# --- Properties -------------------------------------------------------------------------------------------


@given(
    prompt=st.integers(1, 60),
    generated=st.integers(0, 20),
    shared=st.integers(0, 80),
    new=st.integers(0, 60),
    chunk=st.integers(4, 12),
    tail=st.integers(0, 70),
    tile=st.integers(1, 14),
    full=st.booleans(),
)
def test_what_is_kept_is_sound(
    prompt: int, generated: int, shared: int, new: int, chunk: int, tail: int, tile: int, full: bool
) -> None:
    sparse = Query(chunk_size=chunk, batch_size=chunk, local=1, heavy=2, tile=tile, dense_tail=tail)
    policy = Full(batch_size=chunk) if full else sparse
    cached = list(range(prompt + generated))
    shared = min(shared, len(cached))
    tokens = [*cached[:shared], *[99] * max(new, not shared)]
    got = plan(cached, tokens, policy, prefilled=prompt)
    assert 0 <= got.length < len(tokens)
    assert got.length <= shared
    assert (got.prefix is Prefix.NONE) == (got.length == 0)
    if got.prefix is Prefix.HISTORY:
        assert got.length == len(cached)
    if got.prefix is Prefix.EXACT:
        assert full
        assert got.length == min(shared, len(tokens) - 1)
    if got.prefix is Prefix.BOUNDARY:
        starts = [policy.lasting_rows(n) for n in (prompt, len(tokens))]
        if starts[0] == starts[1] < shared:  # one tail
            assert got.length == min(shared, prompt, len(tokens) - 1)
        else:  # no kept row belongs to a dense tail, of then or of now
            most = min(shared, prompt - 1, len(tokens) - 1, *starts)
            assert most - sparse.tile_rows < got.length <= most
            assert got.length < chunk or got.length % chunk % sparse.tile_rows == 0
        for n in (prompt, len(tokens)):
            wanted, first = min(tail, n) if n > chunk else 0, policy.lasting_rows(n)
            assert wanted <= n - first < wanted + sparse.tile_rows
            assert not wanted or first % chunk % sparse.tile_rows == 0


# --- Short differences ------------------------------------------------------------------------------------

DRAWN = np.random.default_rng(3).integers(1000, 9000, 4000)  # no token is drawn twice side by side


def drawn(count: int, start: int = 0) -> list[int]:
    return DRAWN[start : start + count].tolist()


@pytest.mark.parametrize(
    ("head", "was", "other", "again", "new", "found"),
    [
        (24, 5, 4, 2000, 20, ShortDifference(24, 4, 2000)),
        (24, 0, 1, 256, 10, ShortDifference(24, 1, 256)),  # one more token
        (24, 3, 0, 256, 10, ShortDifference(24, 0, 256)),  # some fewer
        (0, 64, 64, 900, 0, ShortDifference(0, 64, 900)),
        (24, 5, 5, 400, 395, ShortDifference(24, 5, 400)),
        (24, 5, 5, 255, 0, None),  # too little
        (24, 65, 1, 900, 0, None),  # another text
        (24, 1, 65, 900, 0, None),
        (24, 5, 5, 400, 405, None),  # most of it is new anyway
        (900, 5, 5, 0, 900, None),
    ],
)
def test_a_short_difference_is_found(
    head: int, was: int, other: int, again: int, new: int, found: ShortDifference | None
) -> None:
    same, after = drawn(head), drawn(again, 2000)
    known = [*same, *range(was), *after, *range(200, 210)]
    prompt = [*same, *range(100, 100 + other), *after, *range(300, 300 + new)]
    assert short_difference(np.array(known), np.array(prompt), head) == found
    if found and head:  # from a chunk's end on
        assert short_difference(np.array(known), np.array(prompt), 0) == replace(found, again=again + head)


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), max_size=8), st.integers(1, 40))
def test_a_short_difference_in_a_text_that_repeats_itself(
    was: list[int], other: list[int], period: int
) -> None:
    """Here it may end at several places, one of them as long as can be."""
    repeated = (drawn(period) * 400)[:400]
    known, prompt = np.array([7, *was, *repeated]), np.array([7, *other, *repeated])
    at = shared_prefix(known, prompt)
    found = short_difference(known, prompt, at)
    left = {place - at for place in (len(known), len(prompt))}
    if min(left) < 320:
        return
    assert found is not None
    assert found.at == at
    assert found.tokens <= 8
    assert max(left) >= found.again >= 400 - max(0, at - 1 - min(len(was), len(other)))
    start = at + found.tokens
    same = prompt[start : start + found.again].tolist()
    assert any(known[place : place + len(same)].tolist() == same for place in range(at, at + 65))
