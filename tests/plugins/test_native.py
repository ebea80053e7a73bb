"""The native CPU kernels against float64 NumPy written from the design's formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plugins.native_cases import PRECISIONS, Case, case_of, intra, per_query_head, softmax_state

from h2o_runtime.attention.provider import AttentionShape
from h2o_runtime.kv import KV
from h2o_runtime.names import AttentionPrecision
from h2o_runtime.operators import (
    CACHED_ATTENTION,
    CACHED_CANDIDATE_SCORE,
    CHUNKED_INTRA_ATTENTION,
    MEMORY_FUSED_ATTENTION,
    MEMORY_SELECT,
    TILED_MEMORY_ATTENTION,
)
from h2o_runtime.providers.native import NativeCpuProvider

cases = st.tuples(
    st.sampled_from([1, 2, 3]),  # Hkv
    st.sampled_from([1, 2, 3, 4, 8]),  # group
    st.sampled_from(range(8, 257, 8)),  # d
    st.sampled_from([np.float32, np.float16]),
    st.sampled_from([1, 2, 3]),  # threads
    st.integers(0, 2**31),
    st.sampled_from(PRECISIONS),
).map(lambda drawn: case_of(*drawn))
quick = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@quick
@given(cases, st.integers(1, 150), st.integers(1, 90), st.booleans(), st.booleans())
def test_chunked_intra_attention(case: Case, n: int, S: int, by_query: bool, with_sums: bool) -> None:
    dtype = case.dtype
    Hs = case.Hq if by_query else case.Hkv
    q, (k, v) = case.q(n), case.kv(n)
    state = case.empty_state(n)
    colsum = np.full((n, Hs), np.nan, np.float32) if with_sums else None
    case.provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=v, chunk_size=S, **state.out, colsum=colsum)
    o, m, l, expected = intra(case, q, k, v, S, Hs)
    case.check(state.o, o, dtype, "o", v)
    case.check(state.m, m, np.float32, "m")
    case.check(state.l, l, np.float32, "l")
    if colsum is not None:
        case.check(colsum, expected, np.float32, "colsum")


@quick
@given(cases, st.integers(1, 100), st.integers(1, 70), st.booleans(), st.booleans())
def test_memory_fused_attention(case: Case, n: int, M: int, by_query: bool, with_sums: bool) -> None:
    G, dtype = case.Hq // case.Hkv, case.dtype
    Hs, cap = case.Hq if by_query else case.Hkv, 2 * M + 3
    q, (k, v) = case.q(n), case.kv(n)
    k_cache, v_cache = case.kv(cap)
    memory = np.stack([np.sort(case.rng.choice(cap, M, replace=False)) for _ in range(Hs)]).astype(np.int32)
    state = case.empty_state(n)
    case.provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=v, chunk_size=n, **state.out)
    colsum = np.full((Hs, M), np.nan, np.float32) if with_sums else None
    case.provider.run(
        MEMORY_FUSED_ATTENTION,
        KV(k_cache, v_cache, len(k_cache)),
        q=q,
        memory=memory,
        **state.intra,
        colsum=colsum,
    )

    head = np.arange(case.Hq)
    rows = memory[head // (case.Hq // Hs)].T  # [M, Hq]
    k_mem, v_mem = k_cache[rows, head // G], v_cache[rows, head // G]
    everything = np.ones((n, M), bool)
    _, _, _, a = softmax_state(case, q, k_mem, v_mem, everything)
    both_k = np.concatenate([k_mem, per_query_head(k, case.Hq)])
    both_v = np.concatenate([v_mem, per_query_head(v, case.Hq)])
    seen = np.concatenate([everything, np.tri(n, dtype=bool)], axis=1)
    o, m, l, _ = softmax_state(case, q, both_k, both_v, seen)
    case.check(state.o, o, dtype, "o", both_v)
    case.check(state.m, m, np.float32, "m")
    case.check(state.l, l, np.float32, "l")
    if colsum is not None:
        case.check(colsum, a.reshape(n, Hs, -1, M).sum(axis=(0, 2)), np.float32, "colsum")


@quick
@given(cases, st.integers(1, 100), st.integers(1, 70), st.integers(1, 40), st.booleans())
def test_tiled_memory_attention(case: Case, n: int, M: int, tile: int, by_query: bool) -> None:
    G, dtype = case.Hq // case.Hkv, case.dtype
    Hs, cap, tiles = case.Hq if by_query else case.Hkv, 2 * M + 3, -(-n // tile)
    q, (k, v), (k_cache, v_cache) = case.q(n), case.kv(n), case.kv(cap)
    every = np.tile(np.arange(cap, dtype=np.int32), (tiles, Hs, 1))
    memory = np.sort(case.rng.permuted(every, axis=2)[..., :M])
    state = case.empty_state(n)
    case.provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=v, chunk_size=n, **state.out)
    case.provider.run(
        TILED_MEMORY_ATTENTION, KV(k_cache, v_cache, cap), q=q, memory=memory, tile=tile, **state.intra
    )

    head = np.arange(case.Hq)
    for i in range(tiles):
        own = slice(i * tile, min((i + 1) * tile, n))
        rows = memory[i, head // (case.Hq // Hs)].T  # [M, Hq]
        both_k = np.concatenate([k_cache[rows, head // G], per_query_head(k, case.Hq)])
        both_v = np.concatenate([v_cache[rows, head // G], per_query_head(v, case.Hq)])
        seen = np.concatenate([np.ones((n, M), bool), np.tri(n, dtype=bool)], axis=1)[own]
        o, m, l, _ = softmax_state(case, q[own], both_k, both_v, seen)
        case.check(state.o[own], o, dtype, "o", both_v)
        case.check(state.m[own], m, np.float32, "m")
        case.check(state.l[own], l, np.float32, "l")


@quick
@given(cases, st.integers(1, 60), st.integers(0, 80), st.integers(0, 50), st.booleans())
def test_candidate_score(case: Case, w: int, before: int, M: int, by_query: bool) -> None:
    G = case.Hq // case.Hkv
    Hs, n, cap = case.Hq if by_query else case.Hkv, w + before, 2 * M + 3
    q, (k, _), (k_cache, _) = case.q(w), case.kv(n), case.kv(cap)
    memory = np.stack([np.sort(case.rng.choice(cap, M, replace=False)) for _ in range(Hs)]).astype(np.int32)
    score_memory, score_chunk = np.full((Hs, M), np.nan, np.float32), np.full((n, Hs), np.nan, np.float32)
    case.provider.run(
        CACHED_CANDIDATE_SCORE,
        KV(k_cache, k_cache, len(k_cache)),
        q_window=q,
        k=k,
        memory=memory,
        score_mem=score_memory,
        score_chunk=score_chunk,
    )

    head = np.arange(case.Hq)
    rows = memory[head // (case.Hq // Hs)].T
    keys = np.concatenate([k_cache[rows, head // G], per_query_head(k, case.Hq)])
    seen = np.concatenate([np.ones((w, M), bool), np.tri(w, n, n - w, dtype=bool)], axis=1)
    _, _, _, a = softmax_state(case, q, keys, keys, seen)
    votes = a.reshape(w, Hs, -1, M + n).sum(axis=(0, 2))
    actual = np.concatenate([score_memory, score_chunk.T], axis=1)
    case.check(actual, votes, np.float32, "votes")


@quick
@given(cases, st.integers(1, 70), st.integers(0, 1500))
def test_cached_attention(case: Case, n: int, past: int) -> None:
    length = past + n
    q, (k_cache, v_cache) = case.q(n), case.kv(length + 5)
    o = np.full(q.shape, np.nan, case.dtype)
    case.provider.run(CACHED_ATTENTION, KV(k_cache, v_cache, length), q=q, o=o)
    keys, values = per_query_head(k_cache[:length], case.Hq), per_query_head(v_cache[:length], case.Hq)
    if n * case.Hq // case.Hkv <= 16:
        case.precision = "float32"  # few rows are decode's, which rounds nothing
    expected, _, _, _ = softmax_state(case, q, keys, values, np.tri(n, length, past, dtype=bool))
    case.check(o, expected, case.dtype, "o", v_cache)


@quick
@given(st.integers(1, 4), st.integers(0, 40), st.integers(0, 60), st.integers(0, 30), st.data())
def test_memory_select(Hs: int, Mp: int, count: int, local: int, data: Any) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    case = Case(Hs, Hs, 8, np.float32)
    start = Mp + int(rng.integers(0, 20))
    stop = start + count
    M = data.draw(st.integers(0, max(0, Mp + count - local))) + min(local, Mp + count)
    local = min(local, M)
    # Many ties; what is no number, or below 1e-30, counts as 0.
    score = rng.choice(np.array([np.nan, 1e-35, 2e-35, 0, 1, 2, 3], np.float32), (stop + 4, Hs))
    counted = np.where(score >= 1e-30, score, 0)
    memory = np.stack([np.sort(rng.choice(start, Mp, replace=False)) for _ in range(Hs)]).astype(np.int32)
    out = np.full((Hs, M), -1, np.int32)
    case.provider.run(
        MEMORY_SELECT, score=score, memory=memory, chunk_range=(start, stop), local=local, memory_next=out
    )
    for head in range(Hs):
        kept = list(range(max(start, stop - local), stop))
        others = [*memory[head].tolist(), *range(start, max(start, stop - local))]
        others = [j for _, j in sorted((-counted[j, head], j) for j in others)]
        assert out[head].tolist() == sorted(others[: M - len(kept)] + kept)


def test_thread_count_changes_no_bit() -> None:
    results = []
    for threads in (1, 2, 3, 5):
        case = Case(6, 2, 64, np.float32, threads, seed=9)
        n, M = 700, 96
        q, (k, v), (k_cache, v_cache) = case.q(n), case.kv(n), case.kv(4096)
        memory = np.stack([np.sort(case.rng.choice(4096, M, replace=False)) for _ in range(2)]).astype(
            np.int32
        )
        state, colsum = case.empty_state(n), np.empty((n, 2), np.float32)
        case.provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=v, chunk_size=256, **state.out, colsum=colsum)
        votes = np.empty((2, M), np.float32)
        kv = KV(k_cache, v_cache, len(k_cache))
        case.provider.run(MEMORY_FUSED_ATTENTION, kv, q=q, memory=memory, **state.intra, colsum=votes)
        tiles = np.tile(memory, (4, 1, 1))
        case.provider.run(TILED_MEMORY_ATTENTION, kv, q=q, memory=tiles, tile=200, **state.intra)
        one, many = np.empty_like(q[:1]), np.empty_like(q)
        case.provider.run(CACHED_ATTENTION, KV(k_cache, v_cache, 4000), q=q[:1], o=one)
        case.provider.run(CACHED_ATTENTION, KV(k_cache, v_cache, 4000), q=q, o=many)
        results.append([state.o, state.m, state.l, colsum, votes, one, many])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("precision", "isa"), [one for one in PRECISIONS if one[0] != "float32"])
def test_rows_do_not_depend_on_what_is_read_with_them(precision: AttentionPrecision, isa: str | None) -> None:
    case = Case(6, 2, 72, np.float32, threads=3, isa=isa, precision=precision)
    q, (k, v) = case.q(333), case.kv(333)
    whole, parts = case.empty_state(333), case.empty_state(333)
    case.provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=v, chunk_size=101, **whole.out)
    alone = NativeCpuProvider(1, isa, precision)
    alone.activate(AttentionShape(6, 2, 72, float(np.float32(case.scale)), np.dtype(np.float32)))
    for start in range(0, 333, 101):
        rows = slice(start, start + 101)
        out = {name: array[rows] for name, array in parts.out.items()}
        alone.run(CHUNKED_INTRA_ATTENTION, q=q[rows], k=k[rows], v=v[rows], chunk_size=101, **out)
    for name, array in whole.out.items():
        np.testing.assert_array_equal(array, parts.out[name], err_msg=name)


def test_bad_arguments_say_what_is_wrong() -> None:
    case = Case(4, 2, 32, np.float32)
    q, (k, v) = case.q(8), case.kv(8)
    o = np.empty_like(q)
    with pytest.raises(ValueError, match=r"k_cache must have shape"):
        case.provider.run(CACHED_ATTENTION, KV(k[:, :1].copy(), v, 8), q=q, o=o)
    with pytest.raises(ValueError, match=r"q must be float32"):
        case.provider.run(CACHED_ATTENTION, KV(k, v, 8), q=q.astype(np.float16), o=o)
    with pytest.raises(ValueError, match=r"out of range"):
        case.provider.run(CACHED_ATTENTION, KV(k, v, 9), q=q, o=o)
    memory = np.full((2, 3), 8, np.int32)
    with pytest.raises(ValueError, match=r"memory must index"):
        case.provider.run(
            MEMORY_FUSED_ATTENTION, KV(k, v, len(k)), q=q, memory=memory, **case.empty_state(8).intra
        )
    tiles = np.zeros((3, 2, 3), np.int32)
    with pytest.raises(ValueError, match=r"memory must have shape"):
        case.provider.run(
            TILED_MEMORY_ATTENTION, KV(k, v, len(k)), q=q, memory=tiles, tile=4, **case.empty_state(8).intra
        )
    with pytest.raises(ValueError, match=r"multiple of 8"):
        Case(4, 2, 12, np.float32).provider.run(
            CACHED_ATTENTION,
            KV(np.zeros((1, 2, 12), np.float32), np.zeros((1, 2, 12), np.float32), 1),
            q=np.zeros((1, 4, 12), np.float32),
            o=np.zeros((1, 4, 12), np.float32),
        )
    with pytest.raises(ValueError, match=r"at least 1"):
        NativeCpuProvider(0)
    with pytest.raises(RuntimeError, match=r"activate"):
        NativeCpuProvider(1).run(CACHED_ATTENTION, KV(k, v, 8), q=q, o=o)
