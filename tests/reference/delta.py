"""The gated delta rule in float64, one token after the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float64 = NDArray[np.float64]


def gated_delta(
    q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array, *, scale: float
) -> tuple[Float64, Float64]:
    """q [n, Hq, d], k [n, Hkv, d], v [n, Hq, dv], decay and beta [n, Hq], state [Hq, d, dv] → o [n, Hq, dv] and the
    state behind the tokens."""
    q, k, v, decay, beta, state = (array.astype(np.float64) for array in (q, k, v, decay, beta, state))
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    o = np.zeros(v.shape)
    for t in range(len(q)):
        for h in range(q.shape[1]):
            state[h] *= np.exp(decay[t, h])
            delta = beta[t, h] * (v[t, h] - k[t, h] @ state[h])
            state[h] += np.outer(k[t, h], delta)
            o[t, h] = scale * q[t, h] @ state[h]
    return o, state


@dataclass(frozen=True)
class DeltaCase:
    """Sizes of one call; keys are unit vectors, as those of models."""

    n: int = 5
    heads: int = 2
    kv_heads: int = 1
    d: int = 16
    dv: int = 8
    dtype: str = "float32"
    seed: int = 0
    forgets: float = 0.3  # what a decay is about, as a logarithm

    @property
    def scale(self) -> float:
        return float(np.float32(self.d**-0.5))

    @cached_property
    def inputs(self) -> dict[str, Array]:
        random = np.random.default_rng(self.seed)

        def units(heads: int) -> Array:
            rows = random.normal(size=(self.n, heads, self.d))
            return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(self.dtype)

        per_row = (self.n, self.heads)
        return {
            "q": units(self.heads),
            "k": units(self.kv_heads),
            "v": random.normal(size=(*per_row, self.dv)).astype(self.dtype),
            "decay": (-self.forgets * random.exponential(size=per_row)).astype(np.float32),
            "beta": random.uniform(size=per_row).astype(np.float32),
            "state": random.normal(size=(self.heads, self.d, self.dv)).astype(np.float32),
        }

    @cached_property
    def expected(self) -> tuple[Float64, Float64]:
        return gated_delta(**self.inputs, scale=self.scale)

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
