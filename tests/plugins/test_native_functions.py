"""The native provider against the operators' ONNX function bodies, through the one interface both have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h2o_runtime.attention.base import AttentionProvider, AttentionShape, PartialSoftmax
from h2o_runtime.attention.host_rows import quantized
from h2o_runtime.kv import KV

pytest.importorskip("onnx")
h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

Array = np.ndarray[Any, Any]
HQ, HKV, D, S, M, N = 6, 2, 32, 48, 20, 115


@pytest.fixture(scope="module")
def providers(tiny_bundle: Path) -> Iterator[list[AttentionProvider]]:
    from h2o_runtime.attention.functions import FunctionProvider
    from h2o_runtime.attention.native import NativeCpuProvider
    from h2o_runtime.bundle import Bundle

    both: list[AttentionProvider] = [NativeCpuProvider(2), FunctionProvider(Bundle.open(tiny_bundle), 2)]
    for provider in both:
        provider.activate(AttentionShape(HQ, HKV, D, 0.2, np.dtype(np.float32)))
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
        provider.chunked_intra_attention(q, k, v, S, states, score)
        memory = np.zeros((Hs, M), np.int32)
        provider.memory_select(score, np.zeros((Hs, 0), np.int32), 0, S, 8, 2, memory)
        chunk, colsum = slice(S, 2 * S), np.zeros((Hs, M), np.float32)
        provider.memory_fused_attention(q[chunk], KV(k, v, len(k)), memory, states.rows(S, 2 * S), colsum)
        votes, chunk_votes = np.zeros((Hs, M), np.float32), np.zeros((S, Hs), np.float32)
        provider.candidate_score(q[2 * S - 7 : 2 * S], k[chunk], KV(k, v, len(k)), memory, votes, chunk_votes)
        results.append((states.o, score, colsum, votes, chunk_votes, memory))
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
        provider.cached_attention(q, stored(form, k, v, length), o)
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
        provider.candidate_score(q[-7:], k[64 : 64 + S], kv, memory, votes, chunk_votes)
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
                provider.cached_attention(q, kv, np.zeros_like(q))
            with pytest.raises(ValueError, match="scales"):
                provider.memory_fused_attention(q, kv, memory, state(4), None)
            with pytest.raises(ValueError, match="scales"):
                provider.candidate_score(q, k[:4], kv, memory, votes, np.zeros((4, HKV), np.float32))
            with pytest.raises(ValueError, match="scales"):
                provider.cache_append(k[:1], v[:1], np.zeros(1, np.int64), kv)
