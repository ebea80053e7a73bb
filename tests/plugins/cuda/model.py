"""One model's shape on h2o_plugins._cuda under the emulation, and how near float64 its results must be."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.operator_spec import Operator

Array = NDArray[Any]


@dataclass
class Model:
    """One model shape with its kernels, random inputs, and arrays on the device."""

    cuda: ModuleType
    Hq: int
    Hkv: int
    d: int
    dtype: Any
    window: int = 0
    softcap: float = 0.0
    value_size: int = 0
    memories: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scale = float(np.float32(1 / np.sqrt(self.d)))
        self.half = self.dtype is np.float16
        self.random = np.random.default_rng(self.d)
        self.stream = self.cuda.Stream()
        counters = self.put(np.zeros((MOST_STEP_ROWS, self.Hq), np.uint32))
        integers = self.put_empty(8, dtype=np.int64)
        self.kernels = self.cuda.Kernels(
            query_heads=self.Hq,
            kv_heads=self.Hkv,
            head_size=self.d,
            scale=self.scale,
            half=self.half,
            window=self.window,
            softcap=self.softcap,
            value_size=self.value_size,
            counters=counters.address,
            integers=integers.address,
        )

    def run(self, operator: Operator, kv: Any = None, **arguments: Any) -> None:
        self.kernels.run(self.stream, operator.name, kv, arguments, self._reserve)

    def cache(self, k: Any, v: Any, length: Any) -> Any:
        return self.cuda.KV(k, v, length)

    def _reserve(self, nbytes: int) -> tuple[int, int]:
        return self.put_empty(max(nbytes // 4, 1)).address, nbytes

    def rows(self, n: int, heads: int) -> Array:
        return self.random.standard_normal((n, heads, self.d)).astype(self.dtype)

    def put(self, array: Array) -> Any:
        memory = self.cuda.Memory(max(array.nbytes, 1))
        if array.size:
            self.stream.upload(np.ascontiguousarray(array), memory.address)
        self.memories.append(memory)
        return self.cuda.Array(memory.address, array.shape, array.dtype, memory)

    def put_empty(self, *shape: int, dtype: Any = np.float32) -> Any:
        return self.put(np.full(shape, np.nan if np.dtype(dtype).kind == "f" else -1, dtype))

    def get(self, array: Any) -> Array:
        out = np.empty(array.shape, array.dtype)
        self.stream.download(array.address, out)
        self.stream.synchronize()
        return out


def assert_close(actual: Array, expected: Array, *, half: bool = False) -> None:
    """Design section 8; float16 may be off by its own rounding of the result, twice."""
    assert np.isfinite(actual).all()
    error, largest = np.abs(actual.astype(np.float64) - expected), np.abs(expected).max()
    if half:
        assert error.max() <= 2 * np.finfo(np.float16).eps * largest
        return
    assert error.max() <= 2e-5 * largest
    assert np.linalg.norm(error) <= 1e-6 * np.linalg.norm(expected)


def assert_sums_close(model: Model, actual: Array, expected: Array) -> None:
    """Column sums are float32; those of float16 inputs have float16 products in them."""
    if model.half:
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3)
    else:
        assert_close(actual, expected)
