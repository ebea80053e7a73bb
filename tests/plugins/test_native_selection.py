"""BlockSelect and QuerySelect on the native CPU kernels against the float64 reference."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.plugins.native_cases import PRECISIONS
from tests.runtime.block_cases import Array, BlockCall, block_calls, with_a_key_that_stands_out
from tests.runtime.query_cases import Call, calls

from h2o_runtime.names import AttentionPrecision
from h2o_runtime.providers.native import NativeCpuProvider

Selection: TypeAlias = BlockCall | Call

CANDIDATES = BlockCall(
    n=300, first=901, tile=64, stride=4, block_size=2, local=20, heavy=301, together=2, d=64
)
LISTED = Call(
    n=200, before=700, tile=64, stride=2, tiles=2, reach=1, local=20, heavy=80, listed=450, d=64, loud=90
)
UNLISTED = Call(n=300, before=900, tile=64, stride=4, tiles=2, reach=1, local=20, heavy=80, listed=0, d=64)


def native(call: Selection, threads: int = 2, isa: str | None = None) -> Array:
    return call.run(NativeCpuProvider(threads, isa=isa))


@settings(max_examples=16, deadline=None)
@given(call=st.one_of(block_calls(), calls()), threads=st.integers(1, 3))
@example(call=BlockCall(n=3, first=5, tile=2, stride=1, block_size=8, local=2, heavy=3), threads=1)
@example(call=BlockCall(n=3, first=30, tile=2, stride=1, block_size=8, local=2, heavy=3), threads=1)
def test_it_is_the_reference(call: Selection, threads: int) -> None:
    call.check(native(call, threads))


@pytest.mark.parametrize("call", [CANDIDATES, LISTED], ids=["blocks", "queries"])
@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "neon"])
def test_every_instruction_set(isa: str, call: Selection) -> None:
    try:
        got = native(call, isa=isa)
    except ValueError:
        pytest.skip(f"not on this machine: {isa}")
    call.check(got)


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


@pytest.mark.parametrize("call", [CANDIDATES, UNLISTED], ids=["blocks", "queries"])
def test_thread_count_changes_nothing(call: Selection) -> None:
    results = [native(call, threads) for threads in (1, 2, 5)]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_bad_arguments_are_refused() -> None:
    blocks: dict[str, Any] = {"n": 10, "first": 60, "tile": 5, "stride": 1, "block_size": 8, "local": 8}
    late = BlockCall(**blocks, heavy=40)
    late.past[1] = len(late.k) + 1
    sizes: dict[str, Any] = {"n": 10, "before": 60, "tile": 5, "stride": 1, "tiles": 1, "local": 8}
    beyond = Call(**sizes, reach=1, heavy=40, listed=60)
    beyond.candidates[0, 0, -1] = 60  # not below the past
    refused: tuple[Selection, ...] = (
        BlockCall(**blocks, heavy=53),  # 61 of 60 rows
        late,
        Call(**sizes, reach=0, heavy=90, listed=0),  # fewer rows than the memory has places
        Call(**sizes, reach=0, heavy=40, listed=30),  # fewer candidates
        beyond,
    )
    for call in refused:
        with pytest.raises(ValueError, match="out of range"):
            native(call)
