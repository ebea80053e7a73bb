"""Products of our own in ONNX Runtime: the operator, and which nodes of a graph it takes the place of."""

from __future__ import annotations

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

import h2o_plugins
from h2o_runtime import Generator
from h2o_runtime.bundle import Bundle
from h2o_runtime.errors import BackendError
from h2o_runtime.ort.native import multiply_natively, operators, takes
from h2o_runtime.ort.panels import pack, pack_scales

K, BLOCK = 64, 32


def session(model: ModelProto, threads: int = 1) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.register_custom_ops_library(str(operators()))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def node_model(sizes: tuple[int, ...], bits: int = 8, inputs: str = "x", **changed: Any) -> ModelProto:
    """One PackedProduct of random weights; `inputs` are those that a caller gives."""
    draw = np.random.default_rng(0)
    low, high = (-128, 128) if bits == 8 else (-8, 8)
    weights = [draw.integers(low, high, (n, K)).astype(np.int8) for n in sizes]
    scales = [draw.standard_normal((n, K // BLOCK)).astype(np.float32) for n in sizes]
    constants = {
        "weights": np.concatenate([pack(q, bits, BLOCK).reshape(-1) for q in weights]),  # type: ignore[arg-type]
        "scales": np.concatenate([pack_scales(one).reshape(-1) for one in scales]),
    }
    given = inputs.split()
    optional = [name if name in given else "" for name in ("up", "addend")]
    settings = {"K": K, "N": list(sizes), "block": BLOCK, "bits": bits, "parts": 2} | changed
    outputs = [f"y{i}" for i in range(len(sizes))]
    node = helper.make_node(
        "PackedProduct",
        ["x", "weights", "scales", "", *optional],
        ["scratch", *outputs],
        domain="h2o.cpu",
        **settings,
    )
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        for names in (given, outputs)
    ]
    graph = helper.make_graph(
        [node], "node", *values, [numpy_helper.from_array(array, name) for name, array in constants.items()]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("h2o.cpu", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def rows(*shape: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("bits", [4, 8])
def test_matrices_with_one_input_are_multiplied_each(bits: int) -> None:
    together = session(node_model((40, 16, 5), bits))
    x = rows(7, K)
    found = together.run(["y0", "y1", "y2"], {"x": x})
    assert [y.shape for y in found] == [(7, 40), (7, 16), (7, 5)]
    draw = np.random.default_rng(0)
    q = [draw.integers(*((-128, 128) if bits == 8 else (-8, 8)), (n, K)) for n in (40, 16, 5)]
    for integers, y in zip(q, found, strict=True):
        scales = draw.standard_normal((len(integers), K // BLOCK)).astype(np.float32)
        matrix = integers * np.repeat(scales.astype(np.float64), BLOCK, axis=1)
        np.testing.assert_allclose(y, x.astype(np.float64) @ matrix.T, atol=2e-4 * np.abs(y).max())


def test_any_number_of_rows_threads_and_dimensions() -> None:
    x = rows(300, K)
    expected = session(node_model((600,))).run(["y0"], {"x": x})[0]
    found = session(node_model((600,)), threads=3).run(["y0"], {"x": x.reshape(3, 100, K)})[0]
    np.testing.assert_array_equal(found.reshape(300, 600), expected)
    assert session(node_model((600,))).run(["y0"], {"x": x[:0]})[0].shape == (0, 600)


@pytest.mark.parametrize(
    ("given", "arrays", "words"),
    [
        ("x", {"x": rows(2, K + 1)}, "last dimension of x"),
        ("x up", {"x": rows(2, K), "up": rows(1, K)}, "up must be as large as x"),
        ("x addend", {"x": rows(2, K), "addend": rows(1, 16)}, "addend must be as large"),
    ],
)
def test_sizes_that_disagree_are_refused(given: str, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        session(node_model((16,), inputs=given)).run(["y0"], arrays)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bits": 3}, "sizes that no kernel takes"),
        ({"block": 24}, "sizes that no kernel takes"),
        ({"N": [16] * 9}, "not large enough"),
    ],
)
def test_settings_that_no_kernel_takes_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        session(node_model((16,), **changed))


def test_weights_of_another_length_are_refused() -> None:
    with pytest.raises(Exception, match="weights are not as long"):
        session(node_model((16,), N=[32])).run(["y0"], {"x": rows(1, K)})


def rewritten(folder: Path, graph: str) -> tuple[Counter[str], ModelProto]:
    path = folder / "onnx" / f"{graph}.onnx"
    made = multiply_natively(onnx.load(path, load_external_data=False), path.parent)
    return Counter(node.op_type for node in made.graph.node if node.op_type in COUNTED), made


COUNTED = ("PackedProduct", "DequantizeLinear", "MatMul", "Gemm", "Add", "ReduceSum")


@pytest.mark.parametrize("weights", ["int8", "int4+offset"])
def test_a_layer_is_four_products(shared_folder: Path, weights: str) -> None:
    """q, k, v are one, gate and up another; the gate, offsets and residuals are inside."""
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3", f"-{weights}", weights=weights)[1]
    counted, made = rewritten(folder, "dense_01")
    assert counted["PackedProduct"] == 4
    assert not counted["DequantizeLinear"] + counted["MatMul"] + counted["Gemm"]
    products = [node for node in made.graph.node if node.op_type == "PackedProduct"]
    attributes = [{one.name: helper.get_attribute_value(one) for one in node.attribute} for node in products]
    assert [len(one["N"]) for one in attributes] == [1, 2, 1, 3]
    assert all(one["parts"] == 1 for one in attributes)
    _, _, _, offsets, up, addend = products[2].input
    assert (bool(offsets), bool(up), bool(addend)) == (weights == "int4+offset", True, True)


def test_nodes_stay_in_an_order_in_which_they_can_run(shared_folder: Path) -> None:
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3", "-int8", weights="int8")[1]
    for graph in Bundle.open(folder).manifest.dense_graphs():
        _, made = rewritten(folder, graph.name)
        known = (
            {value.name for value in made.graph.input} | {one.name for one in made.graph.initializer} | {""}
        )
        for node in made.graph.node:
            assert set(node.input) <= known, (graph.name, node.name)
            known |= set(node.output)


def test_a_head_has_two_parts(shared_folder: Path) -> None:
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3", "-int8", weights="int8")[1]
    last = Bundle.open(folder).manifest.dense_graphs()[-1].name
    _, made = rewritten(folder, last)
    (head,) = [node for node in made.graph.node if node.output[-1] == made.graph.output[0].name]
    assert {one.name: helper.get_attribute_value(one) for one in head.attribute}["parts"] == 2


def test_biases_are_no_residuals(shared_folder: Path) -> None:
    folder = bundles.named(shared_folder, "qwen2-g4-d32", "-int8", weights="int8")[1]
    counted, made = rewritten(folder, "dense_01")
    assert counted["Add"] >= 3
    constants = {tensor.name for tensor in made.graph.initializer}
    for node in made.graph.node:
        if node.op_type == "PackedProduct" and len(node.input) > 5:
            assert node.input[5] not in constants


def test_graphs_in_half_precision_stay_with_onnx_runtime(shared_folder: Path) -> None:
    folder = bundles.named(
        shared_folder, "llama-g2-d64-llama3", "-half-int8", weights="int8", dtype="float16"
    )[1]
    assert not takes(onnx.load(folder / "onnx" / "dense_01.onnx", load_external_data=False).graph)
    with Generator.load(folder, context=16, device="cpu", threads=1, form="native") as generator:
        assert np.isfinite(generator.prefill([1, 2, 3])).all()


def test_a_missing_library_is_said(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3", "-int8", weights="int8")[1]
    monkeypatch.setattr(h2o_plugins, "__path__", [])
    with pytest.raises(BackendError, match=r"libh2o_onnxruntime\.so.*choose another --dense-form"):
        Generator.load(folder, context=16, device="cpu", threads=1, form="native")
