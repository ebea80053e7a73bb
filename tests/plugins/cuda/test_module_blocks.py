"""BlockSelect of h2o_plugins._cuda under the emulation, against the float64 reference."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from tests.plugins.cuda.test_module_stored import OnHost
from tests.runtime.block_cases import BlockCall, block_calls


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=block_calls())
@example(call=BlockCall(n=3, first=5, tile=2, stride=1, block_size=8, local=2, heavy=3))  # no whole block
@example(call=BlockCall(n=3, first=30, tile=2, stride=1, block_size=8, local=2, heavy=3))  # within one block
def test_it_is_the_reference(emulated_cuda: ModuleType, call: BlockCall) -> None:
    got = call.run(OnHost())  # type: ignore[arg-type]
    # Means are rounded to the keys' format; a score's relative error is the error of its dot product.
    call.check(got, rtol=1e-5 if call.dtype is np.float32 else 2e-2)


@pytest.mark.parametrize(("d", "alike"), [(16, 1), (64, 0), (64, 1), (64, 2), (80, 1), (96, 1), (128, 1)])
def test_tensor_cores(emulated_cuda: ModuleType, d: int, alike: int) -> None:
    call = BlockCall(
        n=70,
        first=400,
        tile=32,
        stride=4,
        block_size=8,
        local=20,
        heavy=100,
        together=2,
        alike=alike,
        d=d,
        dtype=np.float16,
    )
    call.check(call.run(OnHost()), rtol=2e-2)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_sample_of_the_blocks(emulated_cuda: ModuleType, dtype: type) -> None:
    call = BlockCall(
        n=40, first=1300, tile=16, stride=3, block_size=4, local=5, heavy=400, together=2, d=64, dtype=dtype
    )
    call.check(call.run(OnHost()), rtol=1e-5 if dtype is np.float32 else 2e-2)  # type: ignore[arg-type]
