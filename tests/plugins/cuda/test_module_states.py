"""Layers with a state, by h2o_plugins._cuda under the emulation, against float64."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from tests.plugins.cuda.model import Model
from tests.reference.delta import DeltaCase
from tests.reference.mamba2 import Mamba2Case

from h2o_runtime.operators import GATED_DELTA, MAMBA2

CASES = [
    DeltaCase(n=1, heads=2, kv_heads=1, d=32, dv=32),
    DeltaCase(n=7, heads=4, kv_heads=2, d=32, dv=32, dtype="float16"),
    DeltaCase(n=2, heads=2, kv_heads=2, d=64, dv=64, dtype="float16"),
    DeltaCase(n=16, heads=1, kv_heads=1, d=36, dv=40),  # one whole group; a part of a block
    DeltaCase(n=53, heads=2, kv_heads=1, d=128, dv=32, forgets=3.0),
    Mamba2Case(n=1, heads=2, kv_heads=1, d=32, dv=32),
    Mamba2Case(n=7, heads=4, kv_heads=2, d=32, dv=32, dtype="float16"),
    Mamba2Case(n=3, heads=2, kv_heads=2, d=64, dv=64, dtype="float16"),
    Mamba2Case(n=16, heads=1, kv_heads=1, d=36, dv=40, forgets=300.0),
    Mamba2Case(n=53, heads=2, kv_heads=1, d=128, dv=32, forgets=3.0),
]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(emulated_cuda: ModuleType, case: DeltaCase | Mamba2Case, in_place: bool) -> None:
    model = Model(
        emulated_cuda, case.heads, case.kv_heads, case.d, np.dtype(case.dtype).type, value_size=case.dv
    )
    inputs = {name: model.put(array) for name, array in case.inputs.items()}
    o = model.put_empty(case.n, case.heads, case.dv, dtype=case.dtype)
    after = inputs["state"] if in_place else model.put_empty(case.heads, case.d, case.dv)
    operator = GATED_DELTA if isinstance(case, DeltaCase) else MAMBA2
    model.run(operator, **inputs, o=o, state_next=after)
    case.check(model.get(o), model.get(after))
