"""The function bodies through the provider that the runtime uses, against the float64 reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import operators
from tests.runtime.operator_cases import Case, cases, check, provider_for

from h2o_runtime.attention import PartialSoftmax
from h2o_runtime.kv import KV
from h2o_runtime.operators import CACHED_ATTENTION, MEMORY_FUSED_ATTENTION


def test_no_memory_adds_nothing(tiny_bundle: Path) -> None:
    case, nothing = Case(), np.zeros((2, 0), np.int32)
    q, k, state = case.q(), case.kv(), PartialSoftmax(case.q(), *np.ones((2, 5, 4), np.float32))
    before = state.o.copy()
    provider = provider_for(tiny_bundle, case)
    provider.run(MEMORY_FUSED_ATTENTION, KV(k, k, len(k)), q=q, memory=nothing, **state.intra)
    np.testing.assert_array_equal(state.o, before)
    assert (state.m == 1).all()
    assert (state.l == 1).all()


@settings(max_examples=7, deadline=None)
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
