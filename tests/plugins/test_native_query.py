"""QuerySelect on the native CPU kernels against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.query_cases import Array, Call, calls

h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

from h2o_runtime.providers.native import NativeCpuProvider  # noqa: E402


def native(call: Call, threads: int = 2, isa: str | None = None) -> Array:
    return call.run(NativeCpuProvider(threads, isa=isa))


@settings(max_examples=60, deadline=None)
@given(call=calls(), threads=st.integers(1, 3))
def test_it_is_the_reference(call: Call, threads: int) -> None:
    call.check(native(call, threads))


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "neon"])
def test_every_instruction_set(isa: str) -> None:
    sizes = {
        "n": 200,
        "before": 700,
        "tile": 64,
        "stride": 2,
        "tiles": 2,
        "reach": 1,
        "local": 20,
        "heavy": 80,
    }
    call = Call(**sizes, listed=450, d=64, loud=90)
    try:
        got = native(call, isa=isa)
    except ValueError:
        pytest.skip(f"not on this machine: {isa}")
    call.check(got)


def test_thread_count_changes_nothing() -> None:
    call = Call(n=300, before=900, tile=64, stride=4, tiles=2, reach=1, local=20, heavy=80, listed=0, d=64)
    results = [native(call, threads) for threads in (1, 2, 5)]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_bad_arguments_are_refused() -> None:
    for wrong in ({"heavy": 90}, {"listed": 30}):  # fewer rows, fewer candidates than the memory has places
        sizes = {
            "n": 10,
            "before": 60,
            "tile": 5,
            "stride": 1,
            "tiles": 1,
            "reach": 0,
            "local": 8,
            "heavy": 40,
        }
        with pytest.raises(ValueError, match="out of range"):
            native(Call(**{**sizes, "listed": 0, **wrong}))
    call = Call(n=10, before=60, tile=5, stride=1, tiles=1, reach=1, local=8, heavy=40, listed=60)
    call.candidates[0, 0, -1] = 60  # not below the past
    with pytest.raises(ValueError, match="out of range"):
        native(call)
