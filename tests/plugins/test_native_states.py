"""The gated delta rule and Mamba-2 on the CPU kernels: against float64, and the same however tokens are cut."""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.delta import Array, DeltaCase
from tests.reference.mamba2 import Mamba2Case

from h2o_runtime.attention.provider import AttentionShape
from h2o_runtime.operators import GATED_DELTA, MAMBA2

h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

from h2o_runtime.providers.native import NativeCpuProvider  # noqa: E402

Case: TypeAlias = DeltaCase | Mamba2Case
KINDS: tuple[Any, ...] = (DeltaCase, Mamba2Case)
CASES: list[Case] = [
    DeltaCase(n=1, heads=1),
    DeltaCase(n=3, heads=4, kv_heads=2, d=24, dv=20),
    DeltaCase(n=8, heads=3, kv_heads=3, d=8, dv=4, dtype="float16"),
    DeltaCase(n=9, heads=4, kv_heads=4, d=64, dv=96),
    DeltaCase(n=130, heads=6, kv_heads=2, d=128, dv=128),
    DeltaCase(n=100, heads=2, d=128, dv=128, dtype="float16", forgets=20.0),
    DeltaCase(n=100, heads=2, d=128, dv=64, forgets=0.0),
    Mamba2Case(n=1, heads=1),
    Mamba2Case(n=1, heads=4, kv_heads=2, d=128, dv=96),
    Mamba2Case(n=3, heads=4, kv_heads=2, d=24, dv=20),
    Mamba2Case(n=16, heads=3, kv_heads=3, d=8, dv=4, dtype="float16"),
    Mamba2Case(n=17, heads=4, kv_heads=4, d=64, dv=96),
    Mamba2Case(n=130, heads=48, d=128, dv=32),
    Mamba2Case(n=130, heads=16, kv_heads=2, d=128, dv=64),
    Mamba2Case(n=100, heads=2, d=128, dv=64, dtype="float16", forgets=20.0),
    Mamba2Case(n=100, heads=2, d=128, dv=80, forgets=0.0),
    Mamba2Case(n=100, heads=2, d=16, dv=64, forgets=300.0),
]


def provider_for(case: Case, isa: str | None = None, threads: int = 2) -> NativeCpuProvider:
    provider = NativeCpuProvider(threads, isa=isa)
    scale = case.scale if isinstance(case, DeltaCase) else 1.0
    dtype = np.dtype(case.dtype)
    shape = AttentionShape(case.heads, case.kv_heads, case.d, scale, dtype, value_size=case.dv)
    try:
        provider.activate(shape)
    except ValueError:
        pytest.skip(f"not on this machine: {isa}")
    return provider


def run(provider: NativeCpuProvider, case: Case, rows: slice, state: Array, **out: Any) -> Array:
    """The state becomes that behind the rows, in place."""
    cut: dict[str, Any] = {name: array[rows] for name, array in case.inputs.items() if name != "state"}
    is_delta = isinstance(case, DeltaCase)
    o = np.full(cut["v" if is_delta else "x"].shape, np.nan, case.dtype)
    provider.run(GATED_DELTA if is_delta else MAMBA2, **cut, state=state, o=o, **out)
    return o


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "neon"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: Case, isa: str) -> None:
    before = case.inputs["state"].copy()
    after = np.full_like(before, np.nan)
    o = run(provider_for(case, isa), case, slice(None), before, state_next=after)
    case.check(o, after)
    np.testing.assert_array_equal(before, case.inputs["state"])


@pytest.mark.parametrize("kind", KINDS)
@given(
    sizes=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    dv=st.sampled_from([12, 32]),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    n=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_cuts_do_not_matter(
    kind: Any, sizes: tuple[int, int], dv: int, cuts: list[int], n: int, seed: int
) -> None:
    case = kind(n, *sizes, d=16, dv=dv, seed=seed)
    provider, state = provider_for(case), case.inputs["state"].copy()
    ends = sorted({0, n, *(cut for cut in cuts if cut < n)})
    parts = [run(provider, case, slice(*rows), state) for rows in itertools.pairwise(ends)]
    case.check(np.concatenate(parts), state)


@pytest.mark.parametrize(
    "case",
    [DeltaCase(n=40, heads=4, kv_heads=2, d=32, dv=200), Mamba2Case(n=40, heads=32, kv_heads=2, d=32, dv=72)],
    ids=str,
)
def test_threads_do_not_matter(case: Case) -> None:
    results = []
    for threads in (1, 3):
        provider, state = provider_for(case, threads=threads), case.inputs["state"].copy()
        results.append((run(provider, case, slice(None), state), state))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_must_agree(kind: Any) -> None:
    case = kind()
    provider = provider_for(case)
    with pytest.raises(ValueError, match="state must have shape"):
        run(provider, case, slice(None), np.zeros((2, 8, 8), np.float32))
    missing, operator, name = ("k", GATED_DELTA, "q") if kind is DeltaCase else ("b", MAMBA2, "x")
    with pytest.raises(ValueError, match=f"{missing} is missing"):
        provider.run(operator, **{name: case.inputs[name]})
