"""Rotations of the first numbers of each head (GLM-4), as ONNX Runtime's CUDA provider runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from h2o_export.operators.dense import Rotation
from h2o_runtime.dense_graphs.cuda_provider import unrecordable, with_own_kernels
from h2o_runtime.operators import DOMAIN
from h2o_runtime.ort.session import open_session

HEADS, SIZE, ROTATED = 2, 12, 8
END = np.iinfo(np.int64).max


def model(**changed: int) -> Any:
    """x [n, heads, size] → y, whose first numbers are rotated: the nodes of `blocks.rotate_first` after export."""
    bounds = {"zero": 0, "from": ROTATED, "to": ROTATED, "end": END, "axis": 2, "one": 1} | changed
    nodes = [
        helper.make_node("Slice", ["x", "zero", "to", "axis", "one"], ["first"]),
        helper.make_node("Rotation", ["first", "cos", "sin"], ["turned"], domain=DOMAIN),
        helper.make_node("Slice", ["x", "from", "end", "axis", "one"], ["rest"]),
        helper.make_node("Concat", ["turned", "rest"], ["y"], axis=-1),
    ]
    table = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", ROTATED // 2]) for name in ("cos", "sin")
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", HEADS, None]) for name in "xy")
    constants = [numpy_helper.from_array(np.array([value], np.int64), name) for name, value in bounds.items()]
    graph = helper.make_graph(nodes, "rotated first", [x, *table], [y], constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(
        graph, functions=[Rotation.to_function_proto()], opset_imports=opsets, ir_version=10
    )


def test_they_are_one_kernel(emulated_operators: Path) -> None:
    made = with_own_kernels(model())
    assert [node.op_type for node in made.graph.node] == ["Rotation"]
    assert not unrecordable(made)
    rng, n = np.random.default_rng(0), 5
    x = rng.standard_normal((n, HEADS, SIZE)).astype(np.float32)
    angles = rng.uniform(-50, 50, (n, ROTATED // 2))
    cos, sin = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
    session = open_session(made.SerializeToString(), threads=1, operators=emulated_operators)
    y: NDArray[np.float32] = session.run(None, {"x": x, "cos": cos, "sin": sin})[0]
    a, b, rest = np.split(x.astype(np.float64), [ROTATED // 2, ROTATED], axis=-1)
    c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
    np.testing.assert_allclose(y, np.concatenate([a * c - b * s, b * c + a * s, rest], axis=-1), atol=1e-6)


@pytest.mark.parametrize(
    "changed", [{"zero": 1}, {"from": ROTATED + 1}, {"end": SIZE - 1}, {"axis": 1}, {"one": 2}]
)
def test_other_slices_stay(changed: dict[str, int]) -> None:
    made = with_own_kernels(model(**changed))
    assert sorted(node.op_type for node in made.graph.node) == ["Concat", "Rotation", "Slice", "Slice"]
    assert unrecordable(made) == {"Concat"}
    onnx.checker.check_model(made)
