"""IntegerProduct in ONNX Runtime, compiled for the emulation, beside MatMulNBits with its weights and float64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from h2o_runtime.ort.session import open_session

Array = NDArray[Any]
FEW = [(2,), (9,), (16,), (2, 8)]
OTHERS = [(1,), (17,), (3, 11)]  # by MatMulNBits
HALF = 2.0**-11


@dataclass(frozen=True)
class Weights:
    """As MatMulNBits has them; `exact` float64 [N, K]."""

    bits: int
    block: int
    integers: Array
    scales: Array
    exact: Array

    @classmethod
    def random(cls, bits: int, block: int, inputs: int, outputs: int) -> Weights:
        rng = np.random.default_rng(bits * inputs)
        q = rng.integers(0, 1 << bits, (outputs, inputs // block, block), dtype=np.uint8)
        scales = (0.01 * rng.standard_normal(q.shape[:2])).astype(np.float16)
        packed = q if bits == 8 else q[..., ::2] | q[..., 1::2] << 4
        exact = (q.astype(np.float64) - (1 << (bits - 1))) * scales[..., None].astype(np.float64)
        return cls(bits, block, packed, scales, exact.reshape(outputs, inputs))

    def model(self, operator: str, domain: str, dimensions: int) -> bytes:
        outputs, inputs = self.exact.shape
        node = helper.make_node(
            operator, ["x", "integers", "scales"], ["y"], domain=domain, K=inputs, N=outputs, bits=self.bits,
            block_size=self.block, accuracy_level=1,
        )  # fmt: skip
        leading = [f"n{axis}" for axis in range(dimensions - 1)]
        x, y = (
            helper.make_tensor_value_info(name, TensorProto.FLOAT16, [*leading, size])
            for name, size in (("x", "inputs"), ("y", outputs))
        )
        constants = [
            numpy_helper.from_array(self.integers, "integers"),
            numpy_helper.from_array(self.scales, "scales"),
        ]
        graph = helper.make_graph([node], "product", [x], [y], constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
        serialized: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        return serialized


def run(model: bytes, x: Array, operators: Path | None = None) -> Array:
    (y,) = open_session(model, threads=1, operators=operators).run(None, {"x": x})
    return np.asarray(y)


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 128), (8, 32), (8, 64)])
@pytest.mark.parametrize("rows", [*FEW, *OTHERS], ids=str)
def test_numbers_are_those_of_matmulnbits(
    bits: int, block: int, rows: tuple[int, ...], emulated_operators: Path
) -> None:
    weights = Weights.random(bits, block, 256, 40)
    x = np.random.default_rng(1).standard_normal((*rows, 256)).astype(np.float16)
    ours = run(weights.model("IntegerProduct", "h2o", len(rows) + 1), x, emulated_operators)
    theirs = run(weights.model("MatMulNBits", "com.microsoft", len(rows) + 1), x)
    assert ours.shape == theirs.shape == (*rows, 40)
    exact = x.astype(np.float64) @ weights.exact.T
    # Each weight and each result is rounded to a half once.
    allowed = HALF * (np.abs(x.astype(np.float64)) @ np.abs(weights.exact.T) + np.abs(exact))
    assert (np.abs(ours - exact) <= allowed).all()
    if rows in OTHERS:
        assert np.array_equal(ours, theirs)


def test_rows_have_the_same_bits_in_steps_of_2_to_16_rows(emulated_operators: Path) -> None:
    weights = Weights.random(4, 32, 128, 24)
    model = weights.model("IntegerProduct", "h2o", 2)
    x = np.random.default_rng(2).standard_normal((16, 128)).astype(np.float16)
    wanted = run(model, x, emulated_operators)
    for rows in (2, 7, 8, 9, 15):
        assert np.array_equal(run(model, x[:rows], emulated_operators), wanted[:rows])


def test_inputs_of_another_size_are_refused(emulated_operators: Path) -> None:
    model = Weights.random(4, 32, 128, 24).model("IntegerProduct", "h2o", 2)
    with pytest.raises(Exception, match="IntegerProduct: x has other sizes than the attributes say"):
        run(model, np.zeros((3, 64), np.float16), emulated_operators)
