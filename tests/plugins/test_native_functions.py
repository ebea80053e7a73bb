"""The native provider against the operators' ONNX function bodies, through the one interface both have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h2o_runtime.attention.base import AttentionProvider, AttentionShape, PartialSoftmax, append_rows
from h2o_runtime.kv import KV
from h2o_runtime.operators import (
    CACHED_ATTENTION,
    CACHED_CANDIDATE_SCORE,
    CHUNKED_INTRA_ATTENTION,
    MEMORY_FUSED_ATTENTION,
    MEMORY_SELECT,
)
from h2o_runtime.providers.host_operators import quantized

pytest.importorskip("onnx")
h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

Array = np.ndarray[Any, Any]
HQ, HKV, D, S, M, N = 6, 2, 32, 48, 20, 115


@pytest.fixture(scope="module", params=[0.0, 1.5], ids=["", "capped"])
def providers(tiny_bundle: Path, request: pytest.FixtureRequest) -> Iterator[list[AttentionProvider]]:
    from h2o_runtime.bundles.bundle import Bundle
    from h2o_runtime.providers.functions import FunctionProvider
    from h2o_runtime.providers.native import NativeCpuProvider

    both: list[AttentionProvider] = [NativeCpuProvider(2), FunctionProvider(Bundle.open(tiny_bundle), 2)]
    for provider in both:
        provider.activate(AttentionShape(HQ, HKV, D, 0.2, np.dtype(np.float32), softcap=request.param))
    yield both
    for provider in both:
        provider.deactivate()


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def state(n: int) -> PartialSoftmax:
    return PartialSoftmax(
        np.zeros((n, HQ, D), np.float32), np.zeros((n, HQ), np.float32), np.zeros((n, HQ), np.float32)
    )


def assert_equal(a: Array, b: Array) -> None:
    assert np.abs(a - b).max() <= 2e-5 * np.abs(b).max()
    assert np.linalg.norm(a - b) <= 2e-6 * np.linalg.norm(b)  # both are off by up to 1e-6


@pytest.mark.parametrize("Hs", [HKV, HQ])
def test_a_layer_of_prefill(providers: list[AttentionProvider], Hs: int) -> None:
    """Phase 1 over three chunks, the last partial; then memory, column sums, votes and selection."""
    q, k, v = random(N, HQ, D), random(N, HKV, D), random(N + 1, HKV, D)[1:].copy()
    results = []
    for provider in providers:
        states, score = state(N), np.zeros((N, Hs), np.float32)
        provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=v, chunk_size=S, **states.out, colsum=score)
        memory = np.zeros((Hs, M), np.int32)
        provider.run(
            MEMORY_SELECT,
            score=score,
            memory=np.zeros((Hs, 0), np.int32),
            chunk_range=(0, S),
            local=8,
            memory_next=memory,
        )
        chunk, colsum = slice(S, 2 * S), np.zeros((Hs, M), np.float32)
        provider.run(
            MEMORY_FUSED_ATTENTION,
            KV(k, v, len(k)),
            q=q[chunk],
            memory=memory,
            **states.rows(S, 2 * S).intra,
            colsum=colsum,
        )
        votes, chunk_votes = np.zeros((Hs, M), np.float32), np.zeros((S, Hs), np.float32)
        provider.run(
            CACHED_CANDIDATE_SCORE,
            KV(k, v, len(k)),
            q_window=q[2 * S - 7 : 2 * S],
            k=k[chunk],
            memory=memory,
            score_mem=votes,
            score_chunk=chunk_votes,
        )
        results.append((states.o, states.m, states.l, score, colsum, votes, chunk_votes, memory))
    for native, functions in zip(*results, strict=True):
        assert_equal(native.astype(np.float64), functions.astype(np.float64))
    np.testing.assert_array_equal(results[0][-1], results[1][-1])


def stored(form: str, k: Array, v: Array, length: int) -> KV:
    """Rows as one of a cache's forms has them."""
    if form == "int8":
        (k, k_scales), (v, v_scales) = quantized(k), quantized(v)
        return KV(k, v, length, scales=(k_scales, v_scales))
    if form == "pages":
        turned = [np.concatenate([rows[16:], rows[:16]]) for rows in (k[:112], v[:112])]
        return KV(*turned, length, np.array([6, 0, 1, 2, 3, 4, 5], np.int32), 16)
    return KV(k.astype(form), v.astype(form), length)


@pytest.mark.parametrize("form", ["float32", "float16", "int8", "pages"])
@pytest.mark.parametrize(("n", "length"), [(1, 1), (1, 100), (7, 64), (33, 90)])
def test_cached_attention(providers: list[AttentionProvider], n: int, length: int, form: str) -> None:
    q, k, v = random(n, HQ, D), random(N, HKV, D), random(N + 2, HKV, D)[2:].copy()
    outputs = [np.zeros_like(q), np.zeros_like(q)]
    for provider, o in zip(providers, outputs, strict=True):
        provider.run(CACHED_ATTENTION, stored(form, k, v, length), q=q, o=o)
    assert_equal(outputs[0], outputs[1])


@pytest.mark.parametrize("form", ["float16", "int8", "pages"])
def test_votes_between_a_chunk_and_rows_that_are_stored_otherwise(
    providers: list[AttentionProvider], form: str
) -> None:
    q, k, v = random(S, HQ, D), random(N, HKV, D), random(N + 2, HKV, D)[2:].copy()
    memory, results = np.tile(np.arange(3, 3 + 2 * M, 2, dtype=np.int32), (HKV, 1)), []
    for provider in providers:
        votes, chunk_votes = np.zeros((HKV, M), np.float32), np.zeros((S, HKV), np.float32)
        kv = stored(form, k, v, 64)
        provider.run(
            CACHED_CANDIDATE_SCORE,
            kv,
            q_window=q[-7:],
            k=k[64 : 64 + S],
            memory=memory,
            score_mem=votes,
            score_chunk=chunk_votes,
        )
        results.append((votes, chunk_votes))
    for native, functions in zip(*results, strict=True):
        assert_equal(native.astype(np.float64), functions.astype(np.float64))


def test_a_cache_that_cannot_be_read_is_refused(providers: list[AttentionProvider]) -> None:
    """Floats with scales, and integers without: what they are is not to be guessed."""
    q, k, v = random(4, HQ, D), random(N, HKV, D), random(N, HKV, D)
    scales, memory = (np.ones((N, HKV), np.float32),) * 2, np.zeros((HKV, M), np.int32)
    votes = np.zeros((HKV, M), np.float32)
    for kv in (KV(k, v, N, scales=scales), KV(k.astype(np.int8), v.astype(np.int8), N)):
        for provider in providers:
            with pytest.raises(ValueError, match="scales"):
                provider.run(CACHED_ATTENTION, kv, q=q, o=np.zeros_like(q))
            with pytest.raises(ValueError, match="scales"):
                provider.run(MEMORY_FUSED_ATTENTION, kv, q=q, memory=memory, **state(4).intra)
            with pytest.raises(ValueError, match="scales"):
                provider.run(
                    CACHED_CANDIDATE_SCORE,
                    kv,
                    q_window=q,
                    k=k[:4],
                    memory=memory,
                    score_mem=votes,
                    score_chunk=np.zeros((4, HKV), np.float32),
                )
            with pytest.raises(ValueError, match="scales"):
                append_rows(provider, k[:1], v[:1], np.zeros(1, np.int64), kv)
