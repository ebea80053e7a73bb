"""Function bodies write what kernels write: every operator's arguments, compared after one call by each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h2o_runtime.attention.provider import AttentionProvider, AttentionShape
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.kv import KV
from h2o_runtime.operator_spec import Operator, TensorArgument
from h2o_runtime.operators import (
    CANDIDATE_SCORE,
    KEYS,
    LENGTH,
    MEMORY_ATTENTION,
    MEMORY_GATHER,
    ONLINE_SOFTMAX_FUSION,
    OPERATORS,
    RUNTIME_OPERATORS,
    STEP_ROWS_ATTENTION,
    VALUES,
)
from h2o_runtime.providers.functions import FunctionProvider
from h2o_runtime.providers.native import NativeCpuProvider

h2o_plugins = pytest.importorskip("h2o_plugins")
if h2o_plugins.cpu_kernels() is None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

Array = np.ndarray[Any, Any]
IN_OTHERS = (
    MEMORY_GATHER,
    MEMORY_ATTENTION,
    ONLINE_SOFTMAX_FUSION,
    CANDIDATE_SCORE,
)  # bodies alone have them
ELSEWHERE = (*IN_OTHERS, STEP_ROWS_ATTENTION)
ON_THE_CPU = [one for one in (*OPERATORS, *RUNTIME_OPERATORS) if one not in ELSEWHERE]
PAST, ROWS, CAP, BLOCK = 12, 20, 24, 4  # rows before the call, and after it; rows of a block or a page
SIZES = {"n": ROWS - PAST, "t": 2, "w": 3, "Hq": 4, "Hkv": 2, "Hs": 2, "Hl": 2, "d": 16, "dv": 16, "D": 3}
SIZES |= {"cap": CAP, "R": CAP, "Nb": CAP // BLOCK, "M": 4, "Mp": 7}
SHAPE = AttentionShape(
    SIZES["Hq"], SIZES["Hkv"], SIZES["d"], 0.3, np.dtype(np.float32), window=9, softcap=3.0
)
NUMBERS: dict[str, Any] = {
    "start": PAST,
    "chunk_range": (PAST, ROWS),
    "past": np.full(2, PAST, np.int64),
    "first": np.array([PAST, PAST + 4], np.int64),
    "at": np.full(1, PAST, np.int64),
}
ATTRIBUTES = {
    "start": PAST,
    "stop": ROWS,
    "first": 0,
    "add": 1,
    "chunk_size": 5,
    "tile": 4,
    "stride": 2,
    "reach": 1,
}
ATTRIBUTES |= {"reach": 1, "local": 2, "block_size": BLOCK, "page_size": BLOCK, "sink": 1, "near": 2}
ATTRIBUTES |= {"window": 3, "strides": 1, "count_bias": 1}


def drawn(operator: Operator) -> dict[str, Any]:
    """Its arguments, but for those of the cache. Outputs hold what no operator may leave behind."""
    rng = np.random.default_rng(0)

    def tensor(one: TensorArgument) -> Any:
        shape = tuple(SIZES.get(size) or int(size) for size in one.shape)
        if one in operator.outputs:
            return np.full(shape, -1 if one.dtype == "int32" else np.nan, one.dtype.replace("T", "float32"))
        if one.dtype == "int32":  # rows or pages in order, the last two of which are the latest
            stop = ROWS // BLOCK if one.name == "page_list" else PAST
            lists = [
                np.sort(rng.permutation(stop - 2)[: shape[-1] - 2]) for _ in range(math.prod(shape[:-1]))
            ]
            return np.array([[*rows, stop - 2, stop - 1] for rows in lists], np.int32).reshape(shape)
        positive = one.name in ("step", "l_intra")
        return (rng.uniform(0.5, 2, shape) if positive else rng.normal(size=shape)).astype(np.float32)

    tensors = [one for one in operator.tensors if one.name not in (KEYS, VALUES, LENGTH) and not one.in_place]
    own = {one.name for one in operator.attributes if not one.of_model}
    attributes = {name: ATTRIBUTES[name] for name in own & set(ATTRIBUTES)}
    return attributes | {
        one.name: NUMBERS[one.name] if one.name in NUMBERS else tensor(one) for one in tensors
    }


def after(provider: AttentionProvider, operator: Operator) -> dict[str, Array]:
    """All arrays of a call when it is done, also those that are its inputs."""
    k, v = np.random.default_rng(1).normal(size=(2, CAP, SIZES["Hkv"], SIZES["d"])).astype(np.float32)
    arguments = drawn(operator)
    kv = KV(k, v, ROWS) if {KEYS, LENGTH} & set(operator.input_names) else None
    provider.run(operator, kv, **arguments)
    return {name: one for name, one in arguments.items() if isinstance(one, np.ndarray)} | {
        KEYS: k,
        VALUES: v,
    }


@pytest.fixture(scope="module")
def providers(tiny_bundle: Path) -> Iterator[list[AttentionProvider]]:
    both: list[AttentionProvider] = [NativeCpuProvider(1), FunctionProvider(Bundle.open(tiny_bundle), 1)]
    for provider in both:
        provider.activate(SHAPE)
    yield both
    for provider in both:
        provider.deactivate()


@pytest.mark.parametrize("operator", ON_THE_CPU, ids=lambda operator: operator.name)
def test_all_that_kernels_write_is_written(providers: list[AttentionProvider], operator: Operator) -> None:
    kernels, bodies = (after(provider, operator) for provider in providers)
    for name, ours in kernels.items():
        np.testing.assert_allclose(bodies[name], ours, rtol=1e-4, atol=2e-5, err_msg=name)
    written = {one.in_place or one.name for one in operator.outputs} & set(kernels)
    assert all(np.isfinite(kernels[name]).any() for name in written)
