"""Mixtures of experts in dense graphs become one node each, which computes the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tests import bundles, family_models, latent_models
from tests.packed_matrices import drawn

from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.dense_graphs.fusion import fuse
from h2o_runtime.dense_graphs.native import multiply_natively, operators
from h2o_runtime.ort.session import open_session


@pytest.fixture
def path(shared_folder: Path) -> Path:
    """The dense graph of a layer with 8 experts, of which a row chooses 2, and a shared one."""
    return latent_models.golden_bundle(shared_folder, "v3_yarn_moe") / "onnx" / "dense_02.onnx"


def rewritten(model: Any, path: Path) -> tuple[Counter[str], Any]:
    """The operators of a graph with native products, and its session."""
    made, arrays = multiply_natively(model, path, threads=2)
    counted = Counter(node.op_type for node in made.graph.node)
    ours = fuse(made).SerializeToString()
    return counted, open_session(ours, 2, beside=path.parent, operators=operators(), weights=arrays)


def given(path: Path, n: int) -> dict[str, NDArray[Any]]:
    graphs = Manifest.read(path.parents[1]).dense_graphs()
    return next(drawn(graph, n) for graph in graphs if graph.file.endswith(path.name))


def test_a_mixture_becomes_one_node(path: Path) -> None:
    """With what is added to it; the rows' order, their ways to the experts and back are gone."""
    model = onnx.load(path, load_external_data=False)
    before = Counter(node.op_type for node in model.graph.node)
    counted, session = rewritten(model, path)
    assert counted["PackedExperts"] == 1
    for op_type in ("TopK", "Split", "Concat", "Add"):
        gone = 2 if op_type == "TopK" else 1
        assert counted[op_type] <= before[op_type] - gone
    theirs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for n in (1, 17, 300):
        inputs = given(path, n)
        for found, expected in zip(session.run(None, inputs), theirs.run(None, inputs), strict=True):
            np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("weights", ["float", "int8"])
def test_experts_with_biases(tmp_path: Path, weights: str) -> None:
    """gpt-oss's, with its clamped gate: nothing of them is left."""
    checkpoint = family_models.save(tmp_path / "checkpoint", "gpt_oss-clamped")
    bundle = bundles.export(checkpoint, tmp_path / "bundle", weights=weights)
    path = bundle / "onnx" / "dense_01.onnx"
    counted, session = rewritten(onnx.load(path, load_external_data=False), path)
    assert [counted[name] for name in ("PackedExperts", "PackedMlp", "Split", "Concat")] == [1, 0, 0, 0]
    theirs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for n in (1, 40):
        inputs = given(path, n)
        for found, expected in zip(session.run(None, inputs), theirs.run(None, inputs), strict=True):
            assert bundles.relative_error(found, expected) < (1e-6 if weights == "float" else 0.03)


def test_an_expert_that_another_node_reads_stays(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    made = [name for node in model.graph.node for name in node.output]
    (said,) = [name for name in made if name.endswith("experts/3/down_proj/Gemm")]
    model.graph.node.append(helper.make_node("Neg", [said], ["negative"]))
    model.graph.output.append(helper.make_tensor_value_info("negative", TensorProto.FLOAT, None))
    counted, session = rewritten(model, path)
    assert counted["PackedExperts"] == 0
    assert counted["PackedMlp"] == 8
    assert session.run(["negative"], given(path, 20))[0].shape[1] == 64
