"""What the tests of the operators share: running one by itself, inputs of all sizes, tolerances.

Queries have a given spread of logits: 3 is what a trained model has, 100 leaves float32's exponential range.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper
from tests.reference import operators

from h2o_export.operators import DOMAIN, VERSION, function_protos
from h2o_export.operators.opset import OPSET
from h2o_runtime.attention import AttentionShape
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.operators import OPERATORS
from h2o_runtime.ort.session import open_session
from h2o_runtime.providers.functions import FunctionProvider

Array = NDArray[Any]
Tensors = dict[str, Array]
OUTPUTS = {operator.name: operator.output_names for operator in OPERATORS}
INT32 = ("memory_next", "candidates")


def run_operator(name: str, inputs: Tensors, **attributes: float) -> tuple[Array, ...]:
    """Execute one operator as a one-node model, from the exporter's function bodies."""
    kinds = tuple((key, array.dtype.str, array.ndim) for key, array in inputs.items())
    session = _session(name, kinds, tuple(attributes.items()))
    outputs: list[Array] = session.run(None, inputs)
    return tuple(outputs)


@functools.cache
def _session(
    name: str, kinds: tuple[tuple[str, str, int], ...], attributes: tuple[tuple[str, float], ...]
) -> Any:
    values = [
        helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [None] * rank)
        for key, kind, rank in kinds
    ]
    node = helper.make_node(
        name, [key for key, *_ in kinds], OUTPUTS[name], domain=DOMAIN, **dict(attributes)
    )
    outputs = [helper.make_empty_tensor_value_info(output) for output in OUTPUTS[name]]
    graph = helper.make_graph([node], name, values, outputs)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, VERSION)]
    bodies = [proto for proto in function_protos() if proto.name == name]
    model = helper.make_model(graph, functions=bodies, opset_imports=opsets, ir_version=10)
    return open_session(model.SerializeToString(), threads=2)


@dataclass(frozen=True)
class Case:
    """Sizes of one call; every array follows from them and the seed."""

    n: int = 5
    kv_heads: int = 2
    group: int = 2
    d: int = 32
    per_query: bool = False  # Hs = Hq instead of Hkv
    slots: int = 3
    spread: float = 3.0  # of the logits
    dtype: str = "float32"
    seed: int = 0

    @property
    def query_heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def score_heads(self) -> int:
        return self.query_heads if self.per_query else self.kv_heads

    @property
    def summed(self) -> int:
        """Terms of a column sum: query rows times the query heads of a score head."""
        return self.n * self.query_heads // self.score_heads

    @property
    def scale(self) -> float:
        return float(np.float32(self.d**-0.5))  # attributes are float32

    @functools.cached_property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def q(self, n: int | None = None) -> Array:
        rows = self.rng.normal(size=(self.n if n is None else n, self.query_heads, self.d))
        return (self.spread * rows).astype(self.dtype)

    def kv(self, n: int | None = None) -> Array:
        return self.rng.normal(size=(self.n if n is None else n, self.kv_heads, self.d)).astype(self.dtype)

    def memory(self, below: int) -> Array:
        rows = [np.sort(self.rng.permutation(below)[: self.slots]) for _ in range(self.score_heads)]
        return np.array(rows, np.int32).reshape(self.score_heads, self.slots)


def cases(least_slots: int = 1, dtypes: tuple[str, ...] = ("float32", "float16")) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        n=st.integers(1, 40),
        kv_heads=st.integers(1, 3),
        group=st.sampled_from([1, 2, 4, 8]),
        d=st.sampled_from([32, 64, 80, 128]),
        per_query=st.booleans(),
        slots=st.integers(least_slots, 30),
        spread=st.sampled_from([0.0, 1.0, 3.0, 100.0, 400.0]),
        dtype=st.sampled_from(dtypes),
        seed=st.integers(0, 1 << 20),
    )


def in_precision(dtype: str, reference: Callable[[], tuple[Array, ...]]) -> tuple[Array, ...]:
    """The reference's own result when all of its arithmetic is done in `dtype`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "float64", lambda *arrays: [np.asarray(a).astype(dtype) for a in arrays])
        return reference()


def check(case: Case, actual: tuple[Array, ...], reference: Callable[[], tuple[Array, ...]]) -> None:
    """Every output within its tolerance of the reference, and of the expected type and shape.

    float32 with logits of a usual size: the fixed tolerance of float32 kernels, or four roundings of a logit four
    spreads high where these are more: they are relative errors of what attends to few keys. Logits of hundreds
    have rounding errors of their own, which the exponential makes relative errors: four roundings of a logit four
    spreads high are allowed for, besides twice the error that the reference makes in float32. float16 is held to
    the same, for the bodies compute in float32, with one rounding of the output as its floor; and so to the wider
    tolerance of float16 kernels, twice the error of the reference computed in float16.

    A row maximum is a dot product, which may come out near 0 by cancelling: its error is measured against the
    spread of all logits, where the few that a small case has are smaller. A column sum may have its terms added up
    one after the other, each time with up to half a unit of rounding, all in one direction where terms are alike.
    """
    exact = reference()
    usual = case.dtype == "float32" and case.spread <= 3
    rough = exact if usual else in_precision("float32", reference)
    assert len(actual) == len(exact)
    for index, (got, want, low) in enumerate(zip(actual, exact, rough, strict=True)):
        assert got.shape == want.shape
        assert got.dtype == (case.dtype if index == 0 and got.ndim == 3 else np.float32)
        empty = np.isneginf(want)
        np.testing.assert_array_equal(np.isneginf(got), empty)
        difference = np.where(empty, 0.0, got.astype(np.float64) - np.where(empty, 0.0, want))
        want = np.where(empty, 0.0, want)
        if not want.size:
            continue
        is_row_maximum = index == 1 and len(exact) >= 3
        is_column_sum = index == len(exact) - 1 and got.ndim == 2 and len(exact) != 3
        least = case.spread if is_row_maximum else 0.0
        if usual:
            share = max(1e-6, 4 * 4 * case.spread * 2.0**-24)
            share = max(share, 2**-25 * case.summed) if is_column_sum else share
            assert np.abs(difference).max() <= 2e-5 * max(np.abs(want).max(), least)
            assert np.linalg.norm(difference) <= share * max(np.linalg.norm(want), least * want.size**0.5)
        else:
            low_error = np.abs(np.where(empty, 0.0, low.astype(np.float64) - want)).max()
            floor = np.finfo(got.dtype).eps if got.dtype == np.float16 else 2e-5
            floor += 4 * 4 * case.spread * 2.0**-24
            assert np.abs(difference).max() <= 2 * low_error + floor * np.abs(want).max()


def provider_for(bundle: Path, case: Case) -> FunctionProvider:
    provider = FunctionProvider(Bundle.open(bundle), threads=2)
    provider.activate(
        AttentionShape(case.query_heads, case.kv_heads, case.d, case.scale, np.dtype(case.dtype))
    )
    return provider
