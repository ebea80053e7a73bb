"""BlockSelect of h2o_plugins._cuda under the emulation, against the float64 reference."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from tests.plugins.cuda.test_module_stored import OnHost
from tests.runtime.block_cases import BlockCall, block_calls, with_a_key_that_stands_out

from h2o_runtime.kv import KV
from h2o_runtime.providers.host_operators import quantized

HALF = {"dtype": np.float16}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=block_calls())
@example(call=BlockCall(n=3, first=5, tile=2, stride=1, block_size=8, local=2, heavy=3))  # no whole block
@example(call=BlockCall(n=3, first=30, tile=2, stride=1, block_size=8, local=2, heavy=3))  # within one block
def test_it_is_the_reference(emulated_cuda: ModuleType, call: BlockCall) -> None:
    got = call.run(OnHost())  # type: ignore[arg-type]
    # Moments are rounded to the queries' format; a score's relative error is the error of its dot product.
    call.check(got, rtol=1e-5 if call.dtype is np.float32 else 2e-2)


# Twice the head size has tensor cores, in float16, up to 256.
@pytest.mark.parametrize(
    ("d", "alike"),
    [(16, 1), (40, 1), (64, 0), (64, 1), (64, 2), (80, 0), (80, 2), (96, 1), (128, 0), (128, 1), (128, 2)],
)
def test_tensor_cores(emulated_cuda: ModuleType, d: int, alike: int) -> None:
    call = several_tiles(d, alike=alike, **HALF)
    call.check(call.run(OnHost()), rtol=2e-2)  # type: ignore[arg-type]


def several_tiles(d: int, **changes: Any) -> BlockCall:
    """The last of them has 6 rows of 32, of which 2 vote."""
    sizes = {"n": 70, "first": 400, "tile": 32, "stride": 4, "block_size": 8, "local": 20, "heavy": 100}
    return BlockCall(**{**sizes, "together": 2, "d": d, **changes})


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("d", [80, 160, 256, 576])
def test_sizes_without_tensor_cores(emulated_cuda: ModuleType, d: int, dtype: type) -> None:
    call = BlockCall(
        n=5, first=150, tile=3, stride=2, block_size=8, local=10, heavy=30, kv_heads=1, d=d, dtype=dtype
    )
    call.check(call.run(OnHost()), rtol=1e-5 if dtype is np.float32 else 2e-2)  # type: ignore[arg-type]


@pytest.mark.parametrize("d", [64, 128])
def test_more_votes_than_a_block_of_threads_takes(emulated_cuda: ModuleType, d: int) -> None:
    """40 votes of 2 heads, in the last tile 15."""
    call = several_tiles(d, n=55, tile=40, stride=1, together=1, **HALF)
    call.check(call.run(OnHost()), rtol=2e-2)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("alike", [0, 1, 2])
def test_a_key_that_stands_out_in_its_block(emulated_cuda: ModuleType, alike: int, dtype: type) -> None:
    """Its mean does not show it."""
    call, block = with_a_key_that_stands_out(alike=alike, dtype=dtype)
    got = call.run(OnHost())  # type: ignore[arg-type]
    for rows in got.reshape(-1, got.shape[-1]):
        assert set(range(block.start, block.stop)) <= set(rows.tolist())


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-4), (np.float16, 0.1)])
def test_keys_around_a_bias(emulated_cuda: ModuleType, dtype: type, rtol: float) -> None:
    """A quarter of the channels lies around 100 or -100, closely but in one block, whose mean is theirs too."""
    rng = np.random.default_rng(0)
    call, some, block = several_tiles(64, dtype=dtype, block_size=16, heavy=48), slice(0, 16), slice(160, 176)
    apart = 0.1 * rng.standard_normal((len(call.k), call.kv_heads, 16))
    apart[block] = np.where(np.arange(16) % 2, 2, -2)[:, None, None]
    finite = np.isfinite(call.k[:, :1, :1])
    call.k[..., some] = np.where(finite, 100 * np.sign(rng.standard_normal(16)) + apart, np.nan)
    got = call.run(OnHost())  # type: ignore[arg-type]
    call.check(got, rtol=rtol)
    assert np.all(np.isin(np.arange(block.start, block.stop), got))
    assert np.all((got == block.start).any(axis=-1))


@pytest.mark.parametrize(("d", "dtype"), [(64, np.float16), (128, np.float16), (64, np.float32)])
def test_integer_keys(emulated_cuda: ModuleType, d: int, dtype: type) -> None:
    """The reference has what the integers stand for."""
    call = several_tiles(d, dtype=dtype)
    integers, scales = quantized(np.nan_to_num(call.k).astype(np.float32))
    call.k = integers * scales[..., None]
    got = call.run(OnHost(), KV(integers, integers, len(integers), scales=(scales, scales)))  # type: ignore[arg-type]
    call.check(got, rtol=1e-5 if dtype is np.float32 else 2e-2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_sample_of_the_blocks(emulated_cuda: ModuleType, dtype: type) -> None:
    call = BlockCall(
        n=40, first=1300, tile=16, stride=3, block_size=4, local=5, heavy=400, together=2, d=64, dtype=dtype
    )
    call.check(call.run(OnHost()), rtol=1e-5 if dtype is np.float32 else 2e-2)  # type: ignore[arg-type]
