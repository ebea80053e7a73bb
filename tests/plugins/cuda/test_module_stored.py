"""CUDA operators that read a cache, on rows stored as float16 and int8. The emulation takes the GPU's place."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.runtime.latent_cases import Sizes
from tests.runtime.stored_cases import HKV, OF_A_HEAD_SIZE, OPERATORS, Operators, Stored, assert_alike

from h2o_runtime.attention import AttentionShape
from h2o_runtime.attention.provider import append_rows
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.kv import KV
from h2o_runtime.operator_spec import Operator
from h2o_runtime.providers.cuda import NativeCudaProvider
from h2o_runtime.providers.host_operators import contiguous_rows, quantized


class OnHost:
    """A provider on a device, called with NumPy arrays: all go there before a call, and come back after it."""

    def __init__(self, rows: Stored | Sizes | None = None) -> None:
        self._device = CudaDevice()
        self._provider = NativeCudaProvider(self._device)
        if rows is not None:
            self.activate(rows.shape)

    def activate(self, shape: AttentionShape) -> None:
        self._provider.activate(shape)

    def run(self, operator: Operator, kv: KV | None = None, **arguments: Any) -> None:
        there: list[tuple[np.ndarray[Any, Any], Any]] = []
        cache = self._put(kv, there)
        self._provider.run(
            operator, cache, **{name: self._put(each, there) for name, each in arguments.items()}
        )
        self._device.synchronize()
        for host, array in there:
            host[...] = self._device.download(array)

    def _put(self, value: Any, there: list[tuple[np.ndarray[Any, Any], Any]]) -> Any:
        if isinstance(value, np.ndarray):
            for host, array in there:  # values in keys stay there
                if host is value:
                    return array
            array = self._device.empty(value.shape, value.dtype)
            if value.size:
                self._device.upload(np.ascontiguousarray(value), array)
                there.append((value, array))
            return array
        if isinstance(value, tuple):
            return tuple(self._put(each, there) for each in value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{f.name: self._put(getattr(value, f.name), there) for f in fields(value)})
        return value


# Rows of float16: tests/runtime/test_generator_cuda.py.
@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.nightly)])
def test_shorter_rows_are_read_as_the_floats_that_they_are(emulated_cuda: ModuleType, dtype: str) -> None:
    compare(Stored(length=100, d=32, dtype=dtype), OPERATORS)


@pytest.mark.parametrize("d", [64, *(pytest.param(d, marks=pytest.mark.nightly) for d in (80, 96)), 128])
def test_tiles_of_other_head_sizes(emulated_cuda: ModuleType, d: int) -> None:
    compare(Stored(length=100, d=d, dtype="float16"), OF_A_HEAD_SIZE)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("d", [40, pytest.param(192, marks=pytest.mark.nightly)])
def test_head_sizes_without_tiles(emulated_cuda: ModuleType, d: int, dtype: str) -> None:
    some = {"memory": Stored.fused, "a step": Stored.stepped, "page attention": Stored.paged}
    compare(Stored(length=100, d=d, dtype=dtype), some)


def compare(rows: Stored, operators: Operators) -> None:
    provider: Any = OnHost(rows)
    kv = rows.rows("int8")
    for run in operators.values():
        share = 2e-5 if rows.dtype == "float32" else 4e-3
        assert_alike(run(rows, provider, kv), run(rows, provider, rows.as_floats(kv)), share)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("form", ["float16", "int8"])
def test_rows_are_converted_as_they_are_written(emulated_cuda: ModuleType, dtype: str, form: str) -> None:
    rows = Stored(length=50, d=32, dtype=dtype)
    provider: Any = OnHost(rows)
    kv = rows.rows(form)
    before = contiguous_rows(replace(kv, length=20), np.dtype(np.float32))[0]
    k, v = rows.draw(30, HKV), rows.draw(30, HKV)[::-1].copy()
    k[1, 0] = 0
    append_rows(provider, k, v, 20, kv)
    if form == "int8":
        for new, stored, scales in zip((k, v), (kv.k, kv.v), kv.scales or (), strict=True):
            integers, shares = quantized(new)
            np.testing.assert_allclose(scales[20:50], shares, rtol=1e-6)
            assert np.abs(stored[20:50].astype(int) - integers).max() <= 1
            assert (stored[20:50] != integers).mean() < 1e-2
    else:
        np.testing.assert_array_equal(kv.k[20:50], k.astype(np.float16))
        np.testing.assert_array_equal(kv.v[20:50], v.astype(np.float16))
    append_rows(provider, v[:1], k[:1], np.array([30]), kv)  # as a step does
    again = contiguous_rows(replace(kv, length=50), np.dtype(np.float32))
    assert np.abs(again[0][30] - v[0].astype(np.float32)).max() <= 0.02
    np.testing.assert_array_equal(again[0][:20], before)


def test_pages_are_refused(emulated_cuda: ModuleType) -> None:
    rows = Stored(length=50, d=32)
    provider: Any = OnHost(rows)
    with pytest.raises(ValueError, match=r"cached_attention: no kernel for .* pages"):
        rows.cached(provider, rows.on_pages(rows.rows("float32"), 1), 1)
