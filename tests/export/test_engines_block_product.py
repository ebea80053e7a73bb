"""Products with weights of 4 bits as plugins: the graphs mean what they meant, and engines are built from them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tests import bundles
from tests.engines import Double

from h2o_export.engines.block_product import pack
from h2o_export.engines.build import build
from h2o_export.engines.dense_graph import prepared
from h2o_export.engines.selection import BuildOptions, select_engines
from h2o_export.operators import DENSE_OPERATORS, function_protos
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.engines import TARGETS, EngineManifest, Machine
from h2o_runtime.errors import ConfigError

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-llama"
Feed = dict[str, NDArray[Any]]


@pytest.fixture(scope="module", params=["int4", "int4+offset"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("products") / request.param
    return Bundle.open(bundles.export(EXAMPLE, folder, weights=request.param))


def altered(bundle: Bundle, dtype: str = "float16", **changes: Any) -> Bundle:
    """As if its manifest said something else. Graphs are compared in float32, which ONNX Runtime does not round."""
    spec = bundle.manifest.model.weights
    assert spec is not None
    model = bundle.manifest.model.model_copy(
        update={"dtype": dtype, "weights": spec.model_copy(update=changes)}
    )
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"model": model}))


def feed_of(model: onnx.ModelProto, rows: int) -> Feed:
    random = np.random.default_rng(0)
    feed: Feed = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [size.dim_value or rows for size in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        feed[value.name] = random.standard_normal(shape).astype(dtype)
    return feed


def outputs(model: bytes, feed: Feed, folder: Path) -> list[NDArray[Any]]:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found: list[NDArray[Any]] = session.run(None, feed)
    return found


@pytest.mark.parametrize("rows", [1, 7])
def test_a_layer_computes_what_it_computed(bundle: Bundle, rows: int) -> None:
    """The plugin's function body on the packed words, and DequantizeLinear on the bundle's, bit by bit."""
    path = bundle.path(bundle.graph("dense_01"))
    original = onnx.load(path, load_external_data=False)
    rewritten = prepared(path, block_products=True)
    model = onnx.load_from_string(rewritten)
    products = [node for node in model.graph.node if node.op_type == "BlockProduct"]
    assert len(products) == 7  # q, k, v, o, gate, up, down
    assert not any(node.op_type in ("DequantizeLinear", "MatMul") for node in model.graph.node)
    for node in products:
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        assert (node.domain, attributes) == ("h2o", {"plugin_namespace": b"h2o", "plugin_version": b"1"})
        del node.attribute[:]
    model.functions.extend(function_protos(DENSE_OPERATORS))
    feed = feed_of(original, rows)
    expected = outputs(original.SerializeToString(), feed, path.parent)
    found = outputs(model.SerializeToString(), feed, path.parent)
    for mine, yours in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, yours)


def test_packed_words_take_the_bytes_of_the_integers(bundle: Bundle) -> None:
    path = bundle.path(bundle.graph("dense_01"))
    rewritten = prepared(path, block_products=True)
    tensors = onnx.load_from_string(rewritten).graph.initializer
    assert not any(tensor.data_type == TensorProto.INT4 for tensor in tensors)
    original = onnx.load(path, load_external_data=False).graph.initializer
    integers = {t.name: int(np.prod(t.dims)) for t in original if t.data_type == TensorProto.INT4}
    words = {t.name: numpy_helper.to_array(t) for t in tensors if t.name in integers}
    assert {name: array.nbytes for name, array in words.items()} == {
        name: count // 2 for name, count in integers.items()
    }


def test_where_each_integer_lies() -> None:
    """Input 8t + i of output j: word t of j, where the 4 x 4 words of each four outputs are transposed."""
    q = np.random.default_rng(1).integers(-8, 8, (16, 64)).astype(np.int8)
    words = pack(q).view(np.uint32)
    for output, k in ((0, 0), (5, 1), (5, 33), (10, 62), (15, 31)):
        t, i = k % 32 // 8, k % 8
        word = words.reshape(2, 4, 4, 4)[k // 32, output // 4, t, output % 4]
        assert (int(word) >> 4 * (i // 2 + 4 * (i % 2)) & 15) - 8 == q[output, k]


# Builds


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setitem(sys.modules, "tensorrt", Double())
    library = tmp_path / "libh2o_trt_plugins.so"
    library.write_bytes(b"plugins")
    return Machine(TARGETS["tensorrt"], "10.3.0", 87, library)


@pytest.mark.parametrize("int4", ["tensorrt", "plugin"])
def test_dense_engines_hold_the_plugin_where_it_was_asked_for(
    bundle: Bundle, machine: Machine, int4: Any
) -> None:
    options = BuildOptions("tensorrt", max_context=2048, int4=int4, force=True)
    manifest = build(select_engines(altered(bundle), options), machine, lambda name: None)
    assert manifest.int4 == int4
    assert EngineManifest.read(bundle.folder / "engines" / "tensorrt") == manifest
    built: Any = sys.modules["tensorrt"]
    for name in ("dense_01", "dense_02"):
        operators = {node.op_type for node in built.built[name].model.graph.node}
        assert ("BlockProduct" in operators) == (int4 == "plugin")


@pytest.mark.parametrize(
    ("target", "dtype", "weights", "block_size", "says"),
    [
        ("tensorrt-rtx", "float16", "int4", 32, "`int4=plugin` needs the target tensorrt"),
        ("tensorrt", "float32", "int4", 32, "needs a float16 bundle, and this one is float32"),
        ("tensorrt", "float16", "int8", 32, "needs weights of 4 bits in blocks of 32"),
        ("tensorrt", "float16", "int4", 64, "needs weights of 4 bits in blocks of 32"),
    ],
)
def test_bundles_that_the_plugin_does_not_fit(
    bundle: Bundle, target: str, dtype: str, weights: str, block_size: int, says: str
) -> None:
    other = altered(bundle, dtype, projections=weights, block_size=block_size)
    with pytest.raises(ConfigError, match=says):
        select_engines(other, BuildOptions(target, int4="plugin"))
