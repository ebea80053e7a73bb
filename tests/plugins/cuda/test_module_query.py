"""QuerySelect of h2o_plugins._cuda under the emulation, against the float64 reference."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.plugins.cuda.test_module_stored import OnHost
from tests.runtime.query_cases import Call, calls


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls())
def test_it_is_the_reference(emulated_cuda: ModuleType, call: Call) -> None:
    call.check(call.run(OnHost()))  # type: ignore[arg-type]


@pytest.mark.parametrize("d", [16, 64, 256])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_past_shorter_than_the_votes(emulated_cuda: ModuleType, dtype: type, d: int) -> None:
    """30 rows vote for 10 keys: a tile that is not causal has no more keys than its past."""
    sizes = {"n": 30, "before": 10, "tile": 30, "stride": 1, "tiles": 1, "reach": 0}
    call = Call(**sizes, local=1, heavy=2, listed=0, d=d, dtype=dtype)
    call.check(call.run(OnHost()))  # type: ignore[arg-type]


@pytest.mark.parametrize("d", [24, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("listed", [0, 300])
def test_a_sample_of_the_keys(emulated_cuda: ModuleType, listed: int, dtype: type, d: int) -> None:
    """Rows 340 to 351 are no part of it. Their scores are far above those of the others, and some are chosen."""
    sizes = {"n": 40, "before": 470, "tile": 16, "stride": 3, "tiles": 2, "reach": 2}
    call = Call(**sizes, local=5, heavy=7, listed=listed, d=d, dtype=dtype)
    call.k[340:352] *= 16
    call.check(call.run(OnHost()))  # type: ignore[arg-type]
