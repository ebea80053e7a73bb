"""Graphs as ONNX Runtime's CPU runs them fastest compute what the portable ones do."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from tests import bundles
from tests.reference import checkpoints

from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend
from h2o_runtime.bundle import Bundle
from h2o_runtime.errors import BackendError
from h2o_runtime.manifest import Manifest
from h2o_runtime.ort.fusion import fuse

Arrays = dict[str, NDArray[Any]]


def run(model: ModelProto, folder: Path, inputs: Arrays, optimize: bool = True) -> list[NDArray[Any]]:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    outputs: list[NDArray[Any]] = session.run(None, inputs)
    return outputs


def drawn(model: ModelProto, rows: int) -> Arrays:
    draw, inputs = np.random.default_rng(rows), {}
    for value in model.graph.input:
        shape = [dim.dim_value or rows for dim in value.type.tensor_type.shape.dim]
        whole = value.type.tensor_type.elem_type == TensorProto.INT64
        inputs[value.name] = (
            draw.integers(0, 50, shape) if whole else draw.standard_normal(shape).astype(np.float32)
        )
    return inputs


@pytest.mark.parametrize("shape", checkpoints.SHAPES)
def test_every_graph_of_every_family(shared_folder: Path, shape: str) -> None:
    folder = bundles.named(shared_folder, shape)[1]
    graphs = Manifest.read(folder).dense_graphs()
    for graph in graphs:
        path = folder / graph.file
        given = onnx.load(str(path), load_external_data=False)
        fused = onnx.load(str(path), load_external_data=False)
        fuse(fused)
        for rows in (1, 5):
            inputs = drawn(given, rows)
            for found, expected in zip(
                run(fused, path.parent, inputs), run(given, path.parent, inputs, optimize=False), strict=True
            ):
                assert bundles.relative_error(found, expected) < 3e-6
        operators = Counter(node.op_type for node in fused.graph.node)
        assert operators["RotaryEmbedding"] == (0 if graph is graphs[-1] else 2)
        assert not operators["Reciprocal"]
        assert not operators["Concat"]


def rotation(**changes: Any) -> ModelProto:
    """x [n, 2, 8] turned as the exporter writes it, but for `changes` of constants and of products' factors."""
    constants = {"zero": 0, "half": 4, "end": 2**63 - 1, "last": 2, "step": 1, "middle": 1}
    constants |= {name: value for name, value in changes.items() if name in constants}
    factor = {"a_cos": "c", "b_sin": "s", "b_cos": "c", "a_sin": "s"} | {
        name: value for name, value in changes.items() if name not in constants
    }
    nodes = [
        helper.make_node("Slice", ["x", "zero", "half", "last", "step"], ["a"]),
        helper.make_node("Slice", ["x", "half", "end", "last", "step"], ["b"]),
        helper.make_node("Unsqueeze", ["cos", "middle"], ["c"]),
        helper.make_node("Unsqueeze", ["sin", "middle"], ["s"]),
        *(helper.make_node("Mul", [name[0], factor[name]], [name]) for name in factor),
        helper.make_node("Sub", ["a_cos", "b_sin"], ["minus"]),
        helper.make_node("Add", ["b_cos", "a_sin"], ["plus"]),
        helper.make_node("Concat", ["minus", "plus"], ["q"], axis=-1),
    ]
    shapes: dict[str, list[Any]] = {"x": ["n", 2, 8], "cos": ["n", 4], "sin": ["n", 4], "q": ["n", 2, 8]}
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, at) for name, at in shapes.items()}
    graph = helper.make_graph(
        nodes,
        "rotation",
        [values["x"], values["cos"], values["sin"]],
        [values["q"]],
        [numpy_helper.from_array(np.array([value]), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    "as it is exported": ({}, True),
    "ends where the row ends": ({"end": 8}, True),
    "by another angle": ({"b_cos": "s", "a_sin": "c"}, False),
    "another half": ({"b_cos": "s"}, False),
    "heads": ({"middle": 0}, False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_only_a_rotation_is_taken_for_one(name: str, tmp_path: Path) -> None:
    changes, taken = CHANGES[name]
    given, fused = rotation(**changes), rotation(**changes)
    fuse(fused)
    assert ("RotaryEmbedding" in {node.op_type for node in fused.graph.node}) == taken
    inputs = drawn(given, 2)
    expected = run(given, tmp_path, inputs, optimize=False)
    np.testing.assert_allclose(run(fused, tmp_path, inputs), expected, atol=1e-6)


def test_what_is_given_out_is_kept(tmp_path: Path) -> None:
    """A norm's reciprocal that somebody else reads too."""
    norm = [("Sqrt", ["y"], "root"), ("Reciprocal", ["root"], "factor"), ("Mul", ["x", "factor"], "out")]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y", "out", "factor")
    ]
    graph = helper.make_graph(
        [helper.make_node(op, given, [made]) for op, given, made in norm], "norm", values[:2], values[2:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    fuse(model)
    out, factor = run(model, tmp_path, {"x": np.ones(3, np.float32), "y": np.full(3, 4, np.float32)})
    np.testing.assert_array_equal(out, 0.5)
    np.testing.assert_array_equal(factor, 0.5)


def test_without_onnx_it_is_said_what_to_install(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bundles.named(shared_folder, "llama-g1-d32")[1]
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BackendError, match=r"needs the package onnx: pip install 'h2o-edge\[cpu\]'"):
        OnnxRuntimeBackend(Bundle.open(folder, check_graphs=False)).activate()
