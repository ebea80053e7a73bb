"""Attention whose queries and keys are 16-bit integers with a scale a row: what its error is. The reference
is float64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plugins.native_cases import MULTIPLIES, PRECISIONS, Case, provider_of, softmax_state, whole
from tests.reference import lines, subquadratic
from tests.reference.subquadratic import Pattern
from tests.runtime import operator_cases, test_policy_minference, test_policy_subquadratic
from tests.runtime.query_cases import Call

from h2o_plugins import load_cpu_kernels
from h2o_runtime.attention.provider import AttentionShape
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.devices import HostDevice
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.operators import CACHED_ATTENTION, CHUNKED_INTRA_ATTENTION
from h2o_runtime.providers.native import NativeCpuProvider
from h2o_runtime.providers.select import choose_precision

Array = np.ndarray[Any, Any]
ISAS = [isa for precision, isa in PRECISIONS if precision == "int16"]


def lengths(x: Array) -> Array:
    return np.linalg.norm(x.astype(np.float64), axis=-1)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_any_length_and_kind(isa: str | None) -> None:
    """Sums of 31 bits hold parallel rows, rows of one number, tiny and huge ones, and zeros; a row that is no
    number spoils its own scores alone.
    """
    case = Case(1, 1, 64, np.float32, isa=isa, precision="int16")
    q, (k, v) = case.q(60), case.kv(60)
    q[1], q[2], q[3], q[4] = 1e-18, 0, 0.25, 0
    q[4, 0, 5] = -7
    k[5:9] = [[[0.0]], [[1e-20]], [[500.0]], [[-500.0]]]
    k[9] = 0
    k[9, 0, 5] = 40
    q[50] = np.nan
    state = case.empty_state(60)
    case.provider.run(CHUNKED_INTRA_ATTENTION, q=q, k=k, v=v, chunk_size=60, **state.out)
    assert np.isnan(state.o[50]).all()
    rows = [row for row in range(60) if row != 50]
    o, m, *_ = softmax_state(case, q[rows], k, v, np.tri(60, dtype=bool)[rows])
    lost = case.scale * 1.01 * 8 / 32767 * lengths(q[rows]) * lengths(k).max()
    assert (abs(state.m[rows] - m) <= lost + 1e-5 * abs(m) + 1e-5).all()
    assert (abs(state.o[rows] - o).max(axis=-1) <= (np.expm1(2 * lost) + 1e-5) * abs(v).max()).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("length", [700, 2500])  # one range of rows; splits of the cache
@pytest.mark.parametrize("stored", [np.float16, np.int8])
def test_a_prompt_over_other_caches(isa: str | None, length: int, stored: Any) -> None:
    case = Case(4, 2, 64, np.float32, isa=isa, precision="int16")
    q, rng = case.q(90), case.rng
    if stored is np.int8:
        k, v = (rng.integers(-127, 128, (length, 2, 64)).astype(np.int8) for _ in range(2))
        scales = rng.uniform(0.005, 0.02, (length, 2)).astype(np.float32)
        kv = KV(k, v, length, scales=(scales, scales))
        keys, values = (x * scales[..., None] for x in (k, v))
    else:
        keys, values = (x.astype(np.float16) for x in case.kv(length))
        kv = KV(keys, values, length)
    o = np.full(q.shape, np.nan, np.float32)
    case.provider.run(CACHED_ATTENTION, kv, q=q, o=o)
    seen = np.tri(90, length, length - 90, dtype=bool)
    expected, *_ = softmax_state(case, q, *(np.repeat(x, 2, axis=1) for x in (keys, values)), seen)
    lost = case.scale * 1.01 * 8 / 32767 * lengths(q).max() * lengths(keys).max()
    assert abs(o - expected).max() <= (np.expm1(2 * lost) + 1e-5) * abs(values.astype(np.float32)).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("listed", [0, 300])
def test_votes(isa: str | None, listed: int) -> None:
    call = Call(
        n=200, before=700, tile=64, stride=2, tiles=2, reach=1, local=20, heavy=80, listed=listed, d=64
    )
    call.q, call.k, call.scale = whole(call.q, 63), whole(call.k), call.scale / 40**2
    call.check(call.run(NativeCpuProvider(2, isa, "int16")), rtol=2e-3)  # of a score's steps


@pytest.mark.parametrize("isa", ISAS)
def test_other_patterns(isa: str | None) -> None:
    case = operator_cases.Case(n=700, kv_heads=2, group=3, d=64, spread=1.0)
    provider = provider_of(AttentionShape(6, 2, 64, case.scale, np.dtype(np.float32)), isa, "int16")
    q, k, v = case.q(), case.kv(700), case.kv(700)
    for pattern in (Pattern(128, 64, (0,)), Pattern(600, 16, (0, 70), count_bias=True)):
        o = test_policy_subquadratic.attend(provider, q, k, v, pattern)
        assert abs(o - subquadratic.attention(q, k, v, pattern, scale=case.scale)).max() <= 2e-3
    found = test_policy_minference.select(provider, q[-64:], k, 40, 90)
    o = test_policy_minference.attend(provider, q, k, v, found)
    assert abs(o - lines.attention(q, k, v, found, scale=case.scale)).max() <= 2e-3


def test_who_gets_it(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = load_cpu_kernels().Kernels
    model, cpu = Bundle.open(tiny_bundle).manifest.model, HostDevice()
    assert kernels.fastest_precision() in ("float32", *MULTIPLIES)
    monkeypatch.setattr(type(model), "quantized", property(lambda _: True))
    assert choose_precision("auto", "native", cpu, model) == kernels.fastest_precision()
    assert choose_precision("auto", "functions", cpu, model) == "float32"
    with pytest.raises(ConfigError, match="attention in int16 needs the native kernels"):
        choose_precision("int16", "functions", cpu, model)
    if "int16" in MULTIPLIES:
        assert choose_precision("int16", "native", cpu, model) == "int16"
