"""The native CPU kernels with values of another size than keys, or that are a part of them, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.runtime.latent_cases import FULL_SIZE, TINY, Sizes, cached, check, check_all

from h2o_runtime.kv import KV
from h2o_runtime.operators import CACHED_ATTENTION, CACHED_CANDIDATE_SCORE, LANDMARK_UPDATE

h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

from h2o_runtime.providers.native import NativeCpuProvider  # noqa: E402


def provider_for(sizes: Sizes, isa: str | None = None) -> NativeCpuProvider:
    provider = NativeCpuProvider(2, isa=isa)
    try:
        provider.activate(sizes.shape)
    except ValueError:
        pytest.skip(f"not on this machine: {isa}")
    return provider


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "neon"])
@pytest.mark.parametrize("sizes", TINY, ids=str)
def test_every_operator(sizes: Sizes, isa: str) -> None:
    check_all(sizes, provider_for(sizes, isa))


@pytest.mark.parametrize("sizes", FULL_SIZE, ids=str)
def test_every_operator_at_full_size(sizes: Sizes) -> None:
    check_all(sizes, provider_for(sizes))


@pytest.mark.parametrize("form", ["float32", "float16", "int8"])
@pytest.mark.parametrize(("heads", "n"), [(8, 1), (9, 1), (20, 2), (128, 1), (12, 12), (12, 13)])
def test_rows_that_share_keys_are_taken_together(heads: int, n: int, form: str) -> None:
    """From 9 rows on and up to 144, over several runs and blocks of rows, the last of each not full."""
    sizes = Sizes(heads, 1, 48, 40, latent=True, form=form)
    provider = provider_for(sizes)
    for length in (max(n, 7), 64, 70, 1091):
        check(sizes, cached(sizes, provider, n, length))


def test_pages_of_latents() -> None:
    sizes = Sizes(16, 1, 48, 40, latent=True)
    length, page = 650, 16
    plain = sizes.cache(length, spare=0)
    table = np.random.default_rng(0).permutation(60)[: -(-length // page)].astype(np.int32)
    at = table[np.arange(length) // page].astype(np.int64) * page + np.arange(length) % page
    pool = np.full((60 * page, 1, 48), np.nan, np.float32)
    pool[at] = plain.k
    provider, q = provider_for(sizes), sizes.q(1)
    got: list[Any] = []
    for kv in (plain, KV(pool, pool, length, table, page)):
        got.append(np.full((1, 16, 40), np.nan, np.float32))
        provider.run(CACHED_ATTENTION, kv, q=q, o=got[-1])
    np.testing.assert_allclose(got[1], got[0], rtol=1e-6)


def test_what_is_not_there_is_refused_with_a_sentence() -> None:
    """Votes of heads that share a list, values of another size beside landmarks, sizes that are odd."""
    spanning = Sizes(4, 4, 24, 16)
    provider = provider_for(spanning)
    memory, chunk = np.zeros((1, 5), np.int32), np.zeros((9, 1), np.float32)
    kv = spanning.cache(20)
    with pytest.raises(ValueError, match=r"candidate_score: not supported .* score_heads"):
        provider.run(
            CACHED_CANDIDATE_SCORE,
            kv,
            q_window=spanning.q(2),
            k=spanning.new(9)[0],
            memory=memory,
            score_mem=memory.astype(np.float32),
            score_chunk=chunk,
        )
    means = np.zeros((2, 4, 24), np.float32)
    with pytest.raises(ValueError, match=r"landmark_update: not supported .* value_size"):
        provider.run(LANDMARK_UPDATE, kv, k_mean=means, v_mean=means, start=0, block_size=16)
    odd = replace(spanning, dv=14)
    with pytest.raises(ValueError, match=r"not supported .* multiple of 8"):
        cached(odd, provider_for(odd), 1)
