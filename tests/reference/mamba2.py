"""Mamba-2 in float64, one token after the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float64 = NDArray[np.float64]


def mamba2(
    x: Array, b: Array, c: Array, decay: Array, step: Array, skip: Array, state: Array
) -> tuple[Float64, Float64]:
    """x [n, Hq, dv], b and c [n, Hkv, d], decay, step and skip [n, Hq], state [Hq, d, dv] → o [n, Hq, dv] and the
    state behind the tokens."""
    x, b, c, decay, step, skip, state = (
        array.astype(np.float64) for array in (x, b, c, decay, step, skip, state)
    )
    b, c = (np.repeat(array, x.shape[1] // array.shape[1], axis=1) for array in (b, c))
    o = np.zeros(x.shape)
    for t in range(len(x)):
        for h in range(x.shape[1]):
            state[h] = np.exp(decay[t, h]) * state[h] + np.outer(b[t, h], step[t, h] * x[t, h])
            o[t, h] = c[t, h] @ state[h] + skip[t, h] * x[t, h]
    return o, state


@dataclass(frozen=True)
class Mamba2Case:
    """Sizes of one call."""

    n: int = 5
    heads: int = 2
    kv_heads: int = 1
    d: int = 16
    dv: int = 8
    dtype: str = "float32"
    seed: int = 0
    forgets: float = 0.3  # what a decay is about, as a logarithm

    @cached_property
    def inputs(self) -> dict[str, Array]:
        random = np.random.default_rng(self.seed)
        per_row = (self.n, self.heads)

        def normal(*shape: int) -> Array:
            return random.normal(size=shape).astype(self.dtype)

        return {
            "x": normal(*per_row, self.dv),
            "b": normal(self.n, self.kv_heads, self.d),
            "c": normal(self.n, self.kv_heads, self.d),
            "decay": (-self.forgets * random.exponential(size=per_row)).astype(np.float32),
            "step": random.exponential(size=per_row).astype(np.float32),
            "skip": random.normal(size=per_row).astype(np.float32),
            "state": random.normal(size=(self.heads, self.d, self.dv)).astype(np.float32),
        }

    @cached_property
    def expected(self) -> tuple[Float64, Float64]:
        return mamba2(**self.inputs)

    def check(self, o: Array, state: Array) -> None:
        """float16 rounds the result alone."""
        assert o.dtype == self.dtype
        assert state.dtype == np.float32
        half = self.dtype == "float16"
        for got, expected, tolerance in zip(
            (o, state), self.expected, (1e-3 if half else 2e-5, 2e-5), strict=True
        ):
            assert np.abs(got - expected).max(initial=0) <= tolerance * max(
                np.abs(expected).max(initial=0), 1e-3
            )
