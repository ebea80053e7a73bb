"""The native provider and the operators' ONNX function bodies read the same caches, and refuse the same.

tests/runtime/test_functions_and_kernels.py compares every operator of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h2o_runtime.attention.provider import AttentionProvider, AttentionShape, append_rows
from h2o_runtime.kv import KV
from h2o_runtime.operators import CACHED_ATTENTION
from h2o_runtime.providers.host_operators import quantized

pytest.importorskip("onnx")
h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

Array = np.ndarray[Any, Any]
HQ, HKV, D, N = 6, 2, 32, 115


@pytest.fixture(scope="module")
def providers(tiny_bundle: Path) -> Iterator[list[AttentionProvider]]:
    from h2o_runtime.bundles.bundle import Bundle
    from h2o_runtime.providers.functions import FunctionProvider
    from h2o_runtime.providers.native import NativeCpuProvider

    both: list[AttentionProvider] = [NativeCpuProvider(2), FunctionProvider(Bundle.open(tiny_bundle), 2)]
    for provider in both:
        provider.activate(AttentionShape(HQ, HKV, D, 0.2, np.dtype(np.float32), softcap=1.5))
    yield both
    for provider in both:
        provider.deactivate()


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


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
def test_cached_attention(providers: list[AttentionProvider], form: str) -> None:
    k, v = random(N, HKV, D), random(N + 2, HKV, D)[2:].copy()
    for n, length in ((1, 1), (1, 100), (33, 90)):
        q = random(n, HQ, D)
        ours, theirs = np.zeros_like(q), np.zeros_like(q)
        for provider, o in zip(providers, (ours, theirs), strict=True):
            provider.run(CACHED_ATTENTION, stored(form, k, v, length), q=q, o=o)
        assert np.abs(ours - theirs).max() <= 2e-5 * np.abs(theirs).max()


def test_a_cache_that_cannot_be_read_is_refused(providers: list[AttentionProvider]) -> None:
    """Floats with scales, and integers without: what they are is not to be guessed."""
    q, k, v = random(4, HQ, D), random(N, HKV, D), random(N, HKV, D)
    scales = (np.ones((N, HKV), np.float32),) * 2
    for kv in (KV(k, v, N, scales=scales), KV(k.astype(np.int8), v.astype(np.int8), N)):
        for provider in providers:
            with pytest.raises(ValueError, match="scales"):
                provider.run(CACHED_ATTENTION, kv, q=q, o=np.zeros_like(q))
            with pytest.raises(ValueError, match="scales"):
                append_rows(provider, k[:1], v[:1], np.zeros(1, np.int64), kv)
