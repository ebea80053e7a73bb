"""BlockSelect of h2o_plugins._cuda under the emulation, against float64: what the C++ test program lacks."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from tests.plugins.cuda.test_module_stored import OnHost
from tests.runtime.block_cases import BlockCall, block_calls

from h2o_runtime.kv import KV
from h2o_runtime.providers.host_operators import quantized


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=block_calls())
@example(call=BlockCall(n=3, first=5, tile=2, stride=1, block_size=8, local=2, heavy=3))  # no whole block
@example(call=BlockCall(n=3, first=30, tile=2, stride=1, block_size=8, local=2, heavy=3))  # within one block
def test_it_is_the_reference(emulated_cuda: ModuleType, call: BlockCall) -> None:
    got = call.run(OnHost())  # type: ignore[arg-type]
    # Moments are rounded to the queries' format; a score's relative error is the error of its dot product.
    call.check(got, rtol=1e-5 if call.dtype is np.float32 else 2e-2)


def several_tiles(d: int, **changes: Any) -> BlockCall:
    """The last of them has 6 rows of 32, of which 2 vote."""
    sizes = {"n": 70, "first": 400, "tile": 32, "stride": 4, "block_size": 8, "local": 20, "heavy": 100}
    return BlockCall(**{**sizes, "together": 2, "d": d, **changes})


# Twice the head size has tensor cores, in float16, up to 256.
@pytest.mark.parametrize("d", [64, *(pytest.param(d, marks=pytest.mark.nightly) for d in (80, 128)), 160])
def test_heads_that_share_a_list(emulated_cuda: ModuleType, d: int) -> None:
    call = several_tiles(d, alike=2, dtype=np.float16)
    call.check(call.run(OnHost()), rtol=2e-2)  # type: ignore[arg-type]


@pytest.mark.parametrize(("d", "dtype"), [(64, np.float16), (64, np.float32)])
def test_integer_keys(emulated_cuda: ModuleType, d: int, dtype: type) -> None:
    """The reference has what the integers stand for."""
    call = several_tiles(d, dtype=dtype)
    integers, scales = quantized(np.nan_to_num(call.k).astype(np.float32))
    call.k = integers * scales[..., None]
    got = call.run(OnHost(), KV(integers, integers, len(integers), scales=(scales, scales)))  # type: ignore[arg-type]
    call.check(got, rtol=1e-5 if dtype is np.float32 else 2e-2)
