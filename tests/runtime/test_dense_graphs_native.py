"""Products of our own in ONNX Runtime: the operator, and which nodes of a graph it takes the place of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper
from tests import bundles
from tests.packed_matrices import BLOCK, drawn, node_model, rows, session
from tests.reference import checkpoints

import h2o_plugins
from h2o_runtime import Generator
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.dense_graphs.fusion import fuse
from h2o_runtime.dense_graphs.native import multiply_natively, operators
from h2o_runtime.dense_graphs.packed import aligned, pack, pack_floats, pack_scales
from h2o_runtime.errors import BackendError
from h2o_runtime.ort.session import open_session

K = 64


def product(
    sizes: tuple[int, ...], bits: int = 8, inputs: str = "x", blocks: int = BLOCK, **changed: Any
) -> ModelProto:
    """One PackedProduct of random weights; `inputs` are those that a caller gives. 32 bits are floats."""
    draw = np.random.default_rng(0)
    low, high = (-128, 128) if bits == 8 else (-8, 8)
    if bits == 32:
        floats = [draw.standard_normal((n, K)).astype(np.float32) for n in sizes]
        packed = np.concatenate([pack_floats(one).reshape(-1) for one in floats])
        constants = {"weights": packed.view(np.uint8)}
    else:
        weights = [draw.integers(low, high, (n, K)).astype(np.int8) for n in sizes]
        scales = [draw.standard_normal((n, K // blocks)).astype(np.float32) for n in sizes]
        constants = {
            "weights": np.concatenate([pack(q, 8 if bits == 8 else 4, blocks).reshape(-1) for q in weights]),
            "scales": np.concatenate([pack_scales(one).reshape(-1) for one in scales]),
        }
    given = inputs.split()
    optional = [name if name in given else "" for name in ("up", "norm", "addend", "cos", "sin")]
    settings: dict[str, Any] = {
        "K": K,
        "N": list(sizes),
        "block": blocks,
        "bits": bits,
        "parts": 1 if bits == 32 else 2,
    }
    settings |= {"heads": [0] * len(settings["N"]), "rotated": 0, "epsilon": 0.5, "gate": 0} | changed
    names = ["x", "weights", "" if bits == 32 else "scales", "", *optional]
    outputs = ["scratch", *(f"y{i}" for i in range(len(sizes)))]
    return node_model("PackedProduct", names, outputs, constants, **settings)


@pytest.mark.parametrize("blocks", [16, 32, 64])
@pytest.mark.parametrize("bits", [4, 8])
def test_matrices_with_one_input_are_multiplied_each(bits: int, blocks: int) -> None:
    together = session(product((40, 16, 5), bits, blocks=blocks))
    x = rows(7, K)
    found = together.run(["y0", "y1", "y2"], {"x": x})
    assert [y.shape for y in found] == [(7, 40), (7, 16), (7, 5)]
    draw = np.random.default_rng(0)
    q = [draw.integers(*((-128, 128) if bits == 8 else (-8, 8)), (n, K)) for n in (40, 16, 5)]
    for integers, y in zip(q, found, strict=True):
        scales = draw.standard_normal((len(integers), K // blocks)).astype(np.float32)
        matrix = integers * np.repeat(scales.astype(np.float64), blocks, axis=1)
        np.testing.assert_allclose(y, x.astype(np.float64) @ matrix.T, atol=2e-4 * np.abs(y).max())


def test_any_number_of_rows_threads_and_dimensions() -> None:
    x = rows(300, K)
    expected = session(product((600,))).run(["y0"], {"x": x})[0]
    found = session(product((600,)), threads=3).run(["y0"], {"x": x.reshape(3, 100, K)})[0]
    np.testing.assert_array_equal(found.reshape(300, 600), expected)
    assert session(product((600,))).run(["y0"], {"x": x[:0]})[0].shape == (0, 600)


@pytest.mark.parametrize(
    ("given", "arrays", "words"),
    [
        ("x", {"x": rows(2, K + 1)}, "last dimension of x"),
        ("x up", {"x": rows(2, K), "up": rows(1, K)}, "up must be as large as x"),
        ("x addend", {"x": rows(2, K), "addend": rows(1, 16)}, "addend must be as large"),
        ("x norm", {"x": rows(2, K), "norm": rows(2, K)}, "norm must have one number"),
    ],
)
def test_sizes_that_disagree_are_refused(given: str, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        session(product((16,), inputs=given)).run(["y0"], arrays)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bits": 3}, "sizes that no kernel takes"),
        ({"block": 24}, "sizes that no kernel takes"),
        ({"N": [16] * 9}, "not large enough"),
        ({"heads": [0, 0]}, "sizes that no kernel takes"),
        ({"heads": [3]}, "sizes that no kernel takes"),
        ({"heads": [1], "rotated": 1}, "sizes that no kernel takes"),  # halves of 8
        ({"rotated": 2}, "sizes that no kernel takes"),
        ({"gate": 3}, "a gate that no kernel has"),
    ],
)
def test_settings_that_no_kernel_takes_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        session(product((16,), **changed))


def test_weights_of_another_length_are_refused() -> None:
    with pytest.raises(Exception, match="weights are not as long"):
        session(product((16,), N=[32])).run(["y0"], {"x": rows(1, K)})


@pytest.mark.parametrize("bits", [8, 32])
def test_a_layer_around_a_product(bits: int) -> None:
    """Norm in front, heads in x and y, the first of two results turned: as in float64."""
    n, heads, size = 5, 2, 32
    model = product((heads * size, K), bits, "x norm cos sin", heads=[heads, 4], rotated=1)
    x, norm, angle = rows(n, 4, K // 4, seed=2), rows(K, seed=3), rows(n, size // 2, seed=4)
    turned, flat = session(model).run(
        None, {"x": x, "norm": norm, "cos": np.cos(angle), "sin": np.sin(angle)}
    )
    assert turned.shape == (n, heads, size)
    assert flat.shape == (n, 4, K // 4)
    whole = x.reshape(n, K).astype(np.float64)
    normed = whole / np.sqrt((whole**2).mean(axis=1, keepdims=True) + 0.5) * norm
    plain = session(product((heads * size, K), bits)).run(None, {"x": normed.astype(np.float32)})
    a, b = np.split(plain[0].reshape(n, heads, size).astype(np.float64), 2, axis=2)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    expected = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=2)
    np.testing.assert_allclose(turned, expected, atol=2e-3 * np.abs(expected).max())
    np.testing.assert_allclose(flat.reshape(n, K), plain[1], atol=2e-3 * np.abs(plain[1]).max())


def test_tables_of_another_length_are_refused() -> None:
    model = product((32,), inputs="x cos sin", heads=[1], rotated=1)
    with pytest.raises(Exception, match="cos and sin must have half as many"):
        session(model).run(None, {"x": rows(2, K), "cos": rows(2, 8), "sin": rows(2, 8)})
    without = product((32,), heads=[1], rotated=1)
    with pytest.raises(Exception, match="cos and sin must have half as many"):
        session(without).run(None, {"x": rows(2, K)})


def test_floats_are_multiplied_as_they_are() -> None:
    draw = np.random.default_rng(0)
    matrices = [draw.standard_normal((n, K)).astype(np.float32) for n in (40, 16, 5)]
    for n in (1, 2, 7, 90):
        x = rows(n, K)
        for matrix, y in zip(matrices, session(product((40, 16, 5), 32)).run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(y, x.astype(np.float64) @ matrix.T.astype(np.float64), atol=3e-5)


def rewritten(folder: Path, graph: str) -> tuple[Counter[str], ModelProto]:
    path = folder / "onnx" / f"{graph}.onnx"
    made, arrays = multiply_natively(onnx.load(path, load_external_data=False), path, threads=1)
    named = {tensor.name for tensor in made.graph.initializer}
    assert arrays.keys() <= named
    return Counter(node.op_type for node in made.graph.node if node.op_type in COUNTED), made


COUNTED = ("PackedProduct", "PackedMlp", "DequantizeLinear", "MatMul", "Gemm", "Add", "ReduceSum")


@pytest.mark.parametrize("weights", ["float", "int8", "int4+offset"])
def test_a_layer_is_two_products_and_an_mlp(shared_folder: Path, weights: str) -> None:
    """q, k, v are one product; norms, gate, offsets, residuals and rotation are inside."""
    settings = {} if weights == "float" else {"weights": weights}
    folder = bundles.named(
        shared_folder, "llama-g2-d64-llama3", "" if weights == "float" else f"-{weights}", **settings
    )[1]
    _, made = rewritten(folder, "dense_01")
    assert [node.op_type for node in made.graph.node] == ["PackedProduct", "PackedMlp", "PackedProduct"]
    attention, mlp, queries = made.graph.node
    attributes = [
        {one.name: helper.get_attribute_value(one) for one in node.attribute} for node in made.graph.node
    ]
    assert [len(attributes[0]["N"]), len(attributes[2]["N"])] == [1, 3]
    assert attributes[0]["parts"] == attributes[2]["parts"] == 1
    assert attributes[2]["rotated"] == 2
    assert [bool(name) for node in (attention, queries) for name in node.input[4:]] == [
        *(False, False, True, False, False),  # up, norm, addend, cos, sin: behind attention
        *(False, True, False, True, True),
    ]
    offsets = weights == "int4+offset"
    scales = weights != "float"
    assert [bool(name) for name in mlp.input] == [
        *(True, True, scales, offsets),  # x, gate and up
        *(True, scales, offsets),  # down
        *(True, True),  # norm, addend
    ]


@pytest.mark.parametrize("shape", ["llama-g2-d64-llama3", "qwen2-g4-d32", "qwen3-g2-d128"])
def test_every_graph_of_every_family_computes_the_same(shared_folder: Path, shape: str) -> None:
    """With products of our own, and with ONNX Runtime's in fused graphs."""
    folder = bundles.named(shared_folder, shape)[1]
    graphs = Bundle.open(folder).manifest.dense_graphs()
    for graph in graphs:
        path = folder / graph.file
        given = onnx.load(path, load_external_data=False)
        norms = sum(node.op_type == "RMSNorm" for node in given.graph.node)
        fused = fuse(onnx.load(path, load_external_data=False))
        counted = Counter(node.op_type for node in fused.graph.node)
        assert counted["RotaryEmbedding"] == (0 if graph is graphs[-1] else 2)
        assert counted["SimplifiedLayerNormalization"] == norms
        assert not counted["Concat"]
        assert {node.domain for node in fused.graph.node} <= {"", "com.microsoft"}
        made, arrays = multiply_natively(given, path, threads=1)
        ours = [
            open_session(
                model.SerializeToString(), 1, beside=path.parent, operators=operators(), weights=weights
            )
            for model, weights in ((fuse(made), arrays), (fused, None))
        ]
        plain = onnxruntime.SessionOptions()
        plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        theirs = onnxruntime.InferenceSession(str(path), plain, providers=["CPUExecutionProvider"])
        for n in (1, 17):
            inputs = drawn(graph, n)
            expected = theirs.run(None, inputs)
            for one in ours:
                for found, wanted, spec in zip(one.run(None, inputs), expected, graph.outputs, strict=True):
                    np.testing.assert_allclose(
                        found, wanted, atol=2e-5 * np.abs(wanted).max(), err_msg=f"{graph.name} {spec.name}"
                    )


def test_a_head_has_two_parts(shared_folder: Path) -> None:
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3", "-int8", weights="int8")[1]
    last = Bundle.open(folder).manifest.dense_graphs()[-1].name
    _, made = rewritten(folder, last)
    (head,) = [node for node in made.graph.node if node.output[-1] == made.graph.output[0].name]
    assert {one.name: helper.get_attribute_value(one) for one in head.attribute}["parts"] == 2


def test_one_head_is_no_dimension(tmp_path: Path) -> None:
    checkpoints.make_checkpoint(tmp_path / "checkpoint", query_heads=1, kv_heads=1)
    bundles.export(tmp_path / "checkpoint", tmp_path / "bundle")
    logits = []
    for form in ("native", "exact"):
        with Generator.load(
            tmp_path / "bundle", context=16, device="cpu", threads=1, dense_form=form
        ) as generator:
            logits.append([np.array(generator.prefill([1, 2, 3])), np.array(generator.decode(4))])
    np.testing.assert_allclose(*logits, atol=1e-4)


def test_without_the_library_nothing_is_native(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3")[1]
    monkeypatch.setattr(h2o_plugins, "__path__", [])
    with Generator.load(folder, context=16, device="cpu", threads=1) as generator:
        assert generator.loaded.backend.dense_form == "exact"  # type: ignore[attr-defined]


def test_packed_weights_begin_at_a_line() -> None:
    for sizes in ((5, 64), (100_000,), (7, 9, 11)):
        parts = [np.arange(size, dtype=np.float32) for size in sizes]
        found = aligned(parts)
        assert found.ctypes.data % 64 == 0
        np.testing.assert_array_equal(found, np.concatenate(parts))


def test_a_missing_library_is_said(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3", "-int8", weights="int8")[1]
    monkeypatch.setattr(h2o_plugins, "__path__", [])
    with pytest.raises(BackendError, match=r"libh2o_onnxruntime\.so.*choose another `dense_form`"):
        Generator.load(folder, context=16, device="cpu", threads=1, dense_form="native")
