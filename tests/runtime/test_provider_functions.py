"""The function bodies through the provider that the runtime uses, against the float64 reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.reference import operators
from tests.runtime.operator_cases import (
    Array,
    Case,
    cases,
    check,
    empty_state,
    provider_for,
)

from h2o_runtime.attention import PartialSoftmax
from h2o_runtime.kv import KV
from h2o_runtime.operators import (
    CACHED_ATTENTION,
    CACHED_CANDIDATE_SCORE,
    CHUNKED_INTRA_ATTENTION,
    MEMORY_FUSED_ATTENTION,
)


@settings(max_examples=20, deadline=None)
@given(case=cases(), chunk_size=st.integers(1, 50), scored=st.booleans())
def test_the_provider_runs_intra_attention_chunk_by_chunk(
    tiny_bundle: Path, case: Case, chunk_size: int, scored: bool
) -> None:
    q, k, v = case.q(), case.kv(), case.kv()
    state = empty_state(case)
    colsum = np.full((case.n, case.score_heads), np.nan, np.float32) if scored else None
    provider_for(tiny_bundle, case).run(
        CHUNKED_INTRA_ATTENTION, q=q, k=k, v=v, chunk_size=chunk_size, **state.out, colsum=colsum
    )

    def reference() -> tuple[Array, ...]:
        everything = operators.chunked_intra_attention(
            q, k, v, chunk_size=chunk_size, scale=case.scale, score_heads=case.score_heads
        )
        return everything if scored else everything[:3]

    got = (state.o, state.m, state.l) if colsum is None else (state.o, state.m, state.l, colsum)
    check(case, got, reference)


@settings(max_examples=20, deadline=None)
@given(case=cases(), scored=st.booleans())
@example(case=Case(per_query=True), scored=True)
def test_the_provider_fuses_in_place(tiny_bundle: Path, case: Case, scored: bool) -> None:
    """The output and the state of its softmax, which the next call is fused into."""
    past = case.slots + 2
    q, k, v, memory = case.q(), case.kv(past + case.n), case.kv(past + case.n), case.memory(past)
    provider = provider_for(tiny_bundle, case)
    state = empty_state(case)
    provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k[past:], v=v[past:], chunk_size=case.n, **state.out)
    before = PartialSoftmax(state.o.copy(), state.m.copy(), state.l.copy())
    colsum = np.full((case.score_heads, case.slots), np.nan, np.float32) if scored else None
    provider.run(MEMORY_FUSED_ATTENTION, KV(k, v, len(k)), q=q, memory=memory, **state.intra, colsum=colsum)

    def reference() -> tuple[Array, ...]:
        gathered = operators.memory_gather(k, v, memory)
        *own, sums = operators.memory_attention(q, *gathered, scale=case.scale)
        fused = operators.online_softmax_fusion(before.o, before.m, before.l, *own)
        return (*fused, sums) if scored else fused

    got = (state.o, state.m, state.l)
    check(case, got if colsum is None else (*got, colsum), reference)


def test_no_memory_adds_nothing(tiny_bundle: Path) -> None:
    case, nothing = Case(), np.zeros((2, 0), np.int32)
    q, k, state = case.q(), case.kv(), PartialSoftmax(case.q(), *np.ones((2, 5, 4), np.float32))
    before = state.o.copy()
    provider = provider_for(tiny_bundle, case)
    provider.run(MEMORY_FUSED_ATTENTION, KV(k, k, len(k)), q=q, memory=nothing, **state.intra)
    np.testing.assert_array_equal(state.o, before)
    assert (state.m == 1).all()
    assert (state.l == 1).all()


@settings(max_examples=20, deadline=None)
@given(case=cases(least_slots=0), window=st.integers(1, 40))
@example(case=Case(n=12, slots=0), window=4)
def test_the_provider_scores_candidates_of_the_cache(tiny_bundle: Path, case: Case, window: int) -> None:
    past, window = case.slots + 2, min(window, case.n)
    q, k, memory = case.q(window), case.kv(past + case.n), case.memory(past)
    score_memory = np.full((case.score_heads, case.slots), np.nan, np.float32)
    score_chunk = np.full((case.n, case.score_heads), np.nan, np.float32)
    provider = provider_for(tiny_bundle, case)
    provider.run(
        CACHED_CANDIDATE_SCORE,
        KV(k, k, len(k)),
        q_window=q,
        k=k[past:],
        memory=memory,
        score_mem=score_memory,
        score_chunk=score_chunk,
    )
    k_mem, _ = operators.memory_gather(k, k, memory)
    check(
        case,
        (score_memory, score_chunk),
        lambda: operators.candidate_score(q, k[past:], k_mem, scale=case.scale),
    )


@settings(max_examples=20, deadline=None)
@given(case=cases(), past=st.integers(0, 40), rows=st.integers(1, 40))
def test_the_provider_bounds_the_rows_it_takes_at_once(
    tiny_bundle: Path, case: Case, past: int, rows: int
) -> None:
    length = past + case.n
    q, k, v = case.q(), case.kv(length), case.kv(length)
    o = np.full_like(q, np.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("h2o_runtime.providers.functions.SCORE_BYTES", 4 * case.query_heads * length * rows)
        provider_for(tiny_bundle, case).run(CACHED_ATTENTION, KV(k, v, length), q=q, o=o)
    check(case, (o,), lambda: (operators.cached_attention(q, k, v, length, scale=case.scale),))
