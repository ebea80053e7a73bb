"""Shapes, random inputs and float64 references for tests of the native CPU kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from h2o_runtime.attention.provider import AttentionShape, PartialSoftmax
from h2o_runtime.names import AttentionPrecision

h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

from h2o_runtime.providers.native import NativeCpuProvider  # noqa: E402

Array = np.ndarray[Any, Any]
MULTIPLIES = [
    name for name in ("bfloat16", "int16") if h2o_plugins.load_cpu_kernels().Kernels.multiplies(name)
]
# (precision, instruction set): bfloat16 in plain C++, and what this machine has
PRECISIONS = [("float32", None), ("bfloat16", "scalar"), *((name, None) for name in MULTIPLIES)]
BFLOAT16 = 2.0**-8  # what rounding to 8 bits changes at most, as a share


@dataclass
class Case:
    """One model shape with a provider for it, and random inputs of its dtype."""

    Hq: int
    Hkv: int
    d: int
    dtype: Any
    threads: int = 2
    isa: str | None = None
    seed: int = 0
    spread: float = 1.0  # standard deviation of the scores, roughly
    precision: AttentionPrecision = "float32"

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.scale = 1 / np.sqrt(self.d)
        self.provider = NativeCpuProvider(self.threads, isa=self.isa, precision=self.precision)
        self.provider.activate(
            AttentionShape(self.Hq, self.Hkv, self.d, float(np.float32(self.scale)), np.dtype(self.dtype))
        )

    def q(self, n: int) -> Array:
        return (self.rng.standard_normal((n, self.Hq, self.d)) * self.spread).astype(self.dtype)

    def kv(self, n: int) -> tuple[Array, Array]:
        shape = (n, self.Hkv, self.d)
        return self.rng.standard_normal(shape).astype(self.dtype), self.rng.standard_normal(shape).astype(
            self.dtype
        )

    def factor(self, x: Array, scale: float = 1.0) -> Array:
        """What attention multiplies in place of x · scale, exactly; ml_dtypes rounds to bfloat16."""
        if self.precision != "bfloat16":
            return x.astype(np.float64) * scale
        return (x.astype(np.float32) * np.float32(scale)).astype(ml_dtypes.bfloat16).astype(np.float64)

    def check(self, actual: Array, expected: Array, dtype: Any, what: str, v: Array | None = None) -> None:
        """For outputs with the values `v`, whose weighted means they are: in bfloat16 each weight is rounded
        after the sum by which it is divided. In int16 scores lack a part of a step for each of d products.
        """
        if self.precision == "int16":
            return self.check_int16(actual, expected, dtype, what, v)
        if self.precision == "float32" or what in ("m", "votes"):
            return assert_close(actual, expected, dtype, what)
        assert np.isfinite(actual).all(), what
        error = np.abs(actual.astype(np.float64) - expected).max()
        if v is None:
            assert error <= 2.5e-4 * np.abs(expected).max(), what
        else:
            least = np.finfo(np.float16).eps if np.dtype(dtype) == np.float16 else 0.0
            assert error <= (BFLOAT16 + 2.5e-4 + 2 * least) * np.abs(v.astype(np.float64)).max(), what
        return None

    def check_int16(self, actual: Array, expected: Array, dtype: Any, what: str, v: Array | None) -> None:
        # Half a step of 2^-15 of a row's length, twice; random rows are at most 1.5 sqrt(d) long.
        lost = 2.0**-15 * np.sqrt(self.d) * 1.5**2 * self.d * self.scale * max(self.spread, 1.0)
        assert np.isfinite(actual).all(), what
        error = np.abs(actual.astype(np.float64) - expected).max()
        least = 2 * np.finfo(np.float16).eps if np.dtype(dtype) == np.float16 else 2e-5
        largest = np.abs(expected if v is None else v.astype(np.float64)).max()
        assert error <= (np.expm1(2 * lost) + least) * max(largest, 1.0), what

    def empty_state(self, n: int) -> PartialSoftmax:
        return PartialSoftmax(
            np.full((n, self.Hq, self.d), np.nan, self.dtype),
            np.full((n, self.Hq), np.nan, np.float32),
            np.full((n, self.Hq), np.nan, np.float32),
        )


def softmax_state(case: Case, q: Array, k: Array, v: Array, seen: Array) -> tuple[Array, Array, Array, Array]:
    """q [n, Hq, d], k, v [keys, Hq, d], seen [n, keys] -> o, m, l and probabilities [n, Hq, keys], float64."""
    s = np.einsum("nhd,khd->nhk", case.factor(q, float(np.float32(case.scale))), case.factor(k))
    s = np.where(seen[:, None, :], s, -np.inf)
    m = s.max(axis=-1)
    p = np.exp(s - m[..., None])
    l = p.sum(axis=-1)
    a = p / l[..., None]
    return np.einsum("nhk,khd->nhd", a, case.factor(v)), m, l, a


def per_query_head(x: Array, Hq: int) -> Array:
    """[n, heads, ...] -> [n, Hq, ...], every head serving its group."""
    return np.repeat(x, Hq // x.shape[1], axis=1)


def assert_close(actual: Array, expected: Array, dtype: Any, what: str) -> None:
    """Design section 8; float16 may be off by its own rounding of the result, twice."""
    assert np.isfinite(actual).all(), what
    error = np.abs(actual.astype(np.float64) - expected)
    largest = np.abs(expected).max()
    if np.dtype(dtype) == np.float16:
        assert error.max() <= 2 * np.finfo(np.float16).eps * largest, what
        return
    assert error.max() <= 2e-5 * largest, what
    assert np.linalg.norm(error) <= 1e-6 * np.linalg.norm(expected), what


def intra(case: Case, q: Array, k: Array, v: Array, S: int, Hs: int) -> tuple[Array, Array, Array, Array]:
    n = len(q)
    o, m, l = np.zeros(q.shape), np.zeros(q.shape[:2]), np.zeros(q.shape[:2])
    colsum = np.zeros((n, Hs))
    for start in range(0, n, S):
        rows = slice(start, min(start + S, n))
        count = rows.stop - start
        keys, values = per_query_head(k[rows], case.Hq), per_query_head(v[rows], case.Hq)
        o[rows], m[rows], l[rows], a = softmax_state(case, q[rows], keys, values, np.tri(count, dtype=bool))
        colsum[rows] = a.reshape(count, Hs, -1, count).sum(axis=(0, 2)).T
    return o, m, l, colsum


def case_of(
    Hkv: int,
    group: int,
    d: int,
    dtype: Any,
    threads: int,
    seed: int,
    form: tuple[AttentionPrecision, str | None],
) -> Case:
    return Case(Hkv * group, Hkv, d, dtype, threads, form[1], seed, precision=form[0])


def provider_of(
    shape: AttentionShape, isa: str | None, precision: AttentionPrecision = "bfloat16"
) -> NativeCpuProvider:
    provider = NativeCpuProvider(2, isa, precision)
    provider.activate(shape)
    return provider


def whole(x: Array, most: int = 127) -> Array:
    """Whole numbers that bfloat16 has, and int8 where the largest of a row becomes 127, 7 bits where `most` is 63;
    not numbers stay."""
    numbers = np.clip(np.round(40 * x), -most, most).astype(np.float32)
    numbers[..., 0] = np.where(np.isnan(x[..., 0]), np.nan, most)
    return numbers
