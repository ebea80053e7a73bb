"""Attention whose factors are bfloat16: what its error is, and the operators that test_native.py leaves out.

Inputs are exact in bfloat16 and scales are powers of two, so only the weights of values are rounded, by at
most 2^-8 of themselves. The reference is float64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.plugins.native_cases import (
    MULTIPLIES,
    PRECISIONS,
    Case,
    per_query_head,
    provider_of,
    softmax_state,
    whole,
)
from tests.reference import lines, subquadratic
from tests.reference.subquadratic import Pattern
from tests.runtime import operator_cases, test_policy_minference, test_policy_subquadratic
from tests.runtime.block_cases import BlockCall
from tests.runtime.query_cases import Call

from h2o_runtime.attention.provider import AttentionShape
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.devices import HostDevice
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.operators import CACHED_ATTENTION, CHUNKED_INTRA_ATTENTION, QUERY_SELECT
from h2o_runtime.providers.native import NativeCpuProvider
from h2o_runtime.providers.select import choose_precision

Array = np.ndarray[Any, Any]
ISAS = [isa for precision, isa in PRECISIONS if precision == "bfloat16"]
SHARE = 2.0**-8 + 2.5e-4  # of a weight: its rounding, and what its exponential lacks


def exact(x: Array) -> Array:
    """The nearest numbers that bfloat16 has."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("length", [700, 2500])  # one range of rows; splits of the cache
def test_a_prompt_over_a_cache_of_integers(isa: str | None, length: int) -> None:
    case = Case(4, 2, 64, np.float32, isa=isa, precision="bfloat16")
    q, rng = exact(case.q(90)), case.rng
    k, v = (rng.integers(-127, 128, (length, 2, 64)).astype(np.int8) for _ in range(2))
    scales = np.full((length, 2), 2.0**-6, np.float32)  # times an integer of 8 bits, bfloat16 is exact
    o = np.full(q.shape, np.nan, np.float32)
    case.provider.run(CACHED_ATTENTION, KV(k, v, length, scales=(scales, scales)), q=q, o=o)
    keys, values = (per_query_head(x * np.float32(2.0**-6), 4) for x in (k, v))
    expected, *_ = softmax_state(case, q, keys, values, np.tri(90, length, length - 90, dtype=bool))
    assert abs(o - expected).max() <= SHARE * 2


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("d", "dv", "latent"), [(24, 12, False), (72, 64, False), (72, 60, True)])
def test_values_of_another_size(isa: str | None, d: int, dv: int, latent: bool) -> None:
    """Also where they are the first numbers of keys."""
    rng, scale = np.random.default_rng(3), 0.125
    provider = provider_of(AttentionShape(4, 1, d, scale, np.dtype(np.float32), dv), isa)
    q, k = (exact(rng.standard_normal((77, heads, d))) for heads in (4, 1))
    v = k[..., :dv] if latent else exact(rng.standard_normal((77, 1, dv)))
    o, m, l = np.empty((77, 4, dv), np.float32), np.empty((77, 4), np.float32), np.empty((77, 4), np.float32)
    rows = k if latent else v
    provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=rows, chunk_size=77, o=o, m=m, l=l)
    s = np.einsum("nhd,kd->nhk", q.astype(np.float64), k[:, 0]) * scale
    p = np.exp(np.where(np.tri(77, dtype=bool)[:, None], s, -np.inf))
    expected = np.einsum("nhk,kd->nhd", p / p.sum(axis=-1, keepdims=True), v[:, 0].astype(np.float64))
    assert abs(o - expected).max() <= SHARE * abs(v).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("listed", [0, 300])
def test_votes(isa: str | None, listed: int) -> None:
    call = Call(
        n=200, before=700, tile=64, stride=2, tiles=2, reach=1, local=20, heavy=80, listed=listed, d=64
    )
    call.q, call.k, call.scale = whole(call.q, 63), whole(call.k), call.scale / 40**2
    # Scaled queries are rounded, but where votes are int8 products: there the exponential is a short one.
    call.check(call.run(NativeCpuProvider(2, isa, "bfloat16")), rtol=2**-8 if isa == "scalar" else 3e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_candidates(isa: str | None) -> None:
    """Means are rounded: then lists are nearly those of float32."""
    call = BlockCall(n=200, first=701, tile=64, stride=2, block_size=8, local=20, heavy=300, d=64)
    lists = [
        call.run(NativeCpuProvider(2, isa, precision)).reshape(-1, 320)
        for precision in ("float32", "bfloat16")  # type: ignore[arg-type]
    ]
    assert all((np.diff(one) > 0).all() for one in lists[1])
    assert np.mean([len(np.intersect1d(*two)) / 320 for two in zip(*lists, strict=True)]) > 0.96


@pytest.mark.parametrize("cache", ["float16", "int8"])
def test_votes_of_other_caches_and_heads_that_share_a_list(cache: str) -> None:
    """By int8 products, where the machine has them, numbers are rounded: then sets are nearly those of float32."""
    call = Call(n=200, before=700, tile=64, stride=2, tiles=1, reach=2, local=20, heavy=80, listed=0, d=64)
    call.k = np.nan_to_num(call.k, nan=1.0)
    shape = AttentionShape(4, 2, 64, call.scale, np.dtype(np.float32))
    if cache == "float16":
        kv = KV(call.k.astype(np.float16), call.k.astype(np.float16), len(call.k))
    else:
        scales = np.abs(call.k).max(axis=2) / 127
        numbers = np.rint(call.k / scales[..., None]).astype(np.int8)
        kv = KV(numbers, numbers.copy(), len(call.k), scales=(scales, scales.copy()))
    for heads in (1, 2, 4):
        given = {"q": call.q, "past": call.past, "first": call.first}
        none, chosen = np.zeros((len(call.past), heads, 0), np.int32), []
        for precision in ("float32", "bfloat16"):
            isa = "scalar" if precision not in ("float32", *MULTIPLIES) else None
            provider = NativeCpuProvider(2, isa=isa, precision=precision)  # type: ignore[arg-type]
            provider.activate(shape)
            out = np.empty((len(call.past), heads, 100), np.int32)
            rule = {"tile": 64, "stride": 2, "reach": 2, "local": 20}
            provider.run(QUERY_SELECT, kv, **given, candidates=none, **rule, memory_next=out)
            chosen.append(out.reshape(-1, 100))
        assert all((np.diff(one) > 0).all() for one in chosen[1])
        alike = [len(np.intersect1d(*two)) / 100 for two in zip(*chosen, strict=True)]
        assert np.mean(alike) > 0.97


@pytest.mark.parametrize("isa", ISAS)
def test_lines(isa: str | None) -> None:
    case = operator_cases.Case(kv_heads=2, group=3, d=64, spread=1.0)
    shape = AttentionShape(6, 2, 64, case.scale, np.dtype(np.float32))
    provider, q, k, v = provider_of(shape, isa), exact(case.q(450)), exact(case.kv(700)), exact(case.kv(700))
    found = test_policy_minference.select(provider, q[-64:], k, 40, 90)
    expected = lines.select(q[-64:], k, 40, 90, scale=case.scale)
    scores = lines.scores(q[-64:], k, scale=case.scale)
    for mine, theirs, score in zip(found, expected, scores, strict=True):
        assert test_policy_minference.same_but_for_near_ties(mine, theirs, score)
    o = test_policy_minference.attend(provider, q, k, v, found)
    assert abs(o - lines.attention(q, k, v, found, scale=case.scale)).max() <= SHARE * abs(v).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("pattern", [Pattern(128, 64, (0,)), Pattern(600, 16, (0, 70), count_bias=True)])
def test_subquadratic(isa: str | None, pattern: Pattern) -> None:
    case = operator_cases.Case(n=700, kv_heads=2, group=3, d=64, spread=1.0)
    provider = provider_of(AttentionShape(6, 2, 64, case.scale, np.dtype(np.float32)), isa)
    q, k, v = exact(case.q()), exact(case.kv(700)), exact(case.kv(700))
    o = test_policy_subquadratic.attend(provider, q, k, v, pattern)
    expected = subquadratic.attention(q, k, v, pattern, scale=case.scale)
    # Landmarks are means, which bfloat16 does not hold: their scores and values lack what the format says.
    assert abs(o - expected).max() <= (4 * SHARE + 2.0**-7) * abs(v).max()


def test_who_gets_it(tiny_bundle: Path) -> None:
    model, cpu = Bundle.open(tiny_bundle).manifest.model, HostDevice()
    assert choose_precision("auto", "native", cpu, model) == "float32"
    assert choose_precision("float32", "functions", cpu, model) == "float32"
    with pytest.raises(ConfigError, match="needs the native kernels") as caught:
        choose_precision("bfloat16", "functions", cpu, model)
    assert caught.value.field == "attention_precision"
    with pytest.raises(ConfigError, match="must be one of auto, float32, bfloat16, int16, but is 'int3'"):
        choose_precision("int3", "native", cpu, model)  # type: ignore[arg-type]
    if "bfloat16" in MULTIPLIES:
        assert choose_precision("bfloat16", "native", cpu, model) == "bfloat16"
