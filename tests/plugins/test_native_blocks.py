"""BlockSelect on the native CPU kernels against the float64 reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.plugins.native_cases import PRECISIONS
from tests.runtime.block_cases import Array, BlockCall, block_calls, with_a_key_that_stands_out

h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

from h2o_runtime.names import AttentionPrecision  # noqa: E402
from h2o_runtime.providers.native import NativeCpuProvider  # noqa: E402

LARGE = BlockCall(n=300, first=901, tile=64, stride=4, block_size=2, local=20, heavy=301, together=2, d=64)


def native(call: BlockCall, threads: int = 2, isa: str | None = None) -> Array:
    return call.run(NativeCpuProvider(threads, isa=isa))


@settings(max_examples=60, deadline=None)
@given(call=block_calls(), threads=st.integers(1, 3))
@example(call=BlockCall(n=3, first=5, tile=2, stride=1, block_size=8, local=2, heavy=3), threads=1)
@example(call=BlockCall(n=3, first=30, tile=2, stride=1, block_size=8, local=2, heavy=3), threads=1)
def test_it_is_the_reference(call: BlockCall, threads: int) -> None:
    call.check(native(call, threads))


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "neon"])
def test_every_instruction_set(isa: str) -> None:
    try:
        got = native(LARGE, isa=isa)
    except ValueError:
        pytest.skip(f"not on this machine: {isa}")
    LARGE.check(got)


@pytest.mark.parametrize(("precision", "isa"), PRECISIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_key_that_stands_out_in_its_block_is_found(
    precision: AttentionPrecision, isa: str | None, dtype: Any
) -> None:
    """Votes by int8 too: the difference is large."""
    call, block = with_a_key_that_stands_out(dtype=dtype)
    got = call.run(NativeCpuProvider(2, isa, precision))
    rows = np.arange(block.start, block.stop)
    for one in got.reshape(-1, got.shape[2]):
        assert np.isin(rows, one).all()


def test_thread_count_changes_nothing() -> None:
    results = [native(LARGE, threads) for threads in (1, 2, 5)]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_bad_arguments_are_refused() -> None:
    call = BlockCall(n=10, first=60, tile=5, stride=1, block_size=8, local=8, heavy=53)  # 61 of 60 rows
    with pytest.raises(ValueError, match="out of range"):
        native(call)
    call = BlockCall(n=10, first=60, tile=5, stride=1, block_size=8, local=8, heavy=40)
    call.past[1] = len(call.k) + 1
    with pytest.raises(ValueError, match="out of range"):
        native(call)
