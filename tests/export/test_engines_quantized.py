"""Integer weights as TensorRT for RTX takes them: graphs are built, and integers stay as small as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from tests import bundles
from tests.engines import tensorrt_rtx

from h2o_export.engines.dense_graph import prepared
from h2o_export.engines.network import PlanBuilder
from h2o_export.engines.profiles import ProfileLimits, make_profiles
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.policies.prefill import Query

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-llama"
# Kernels of two profiles; as floats a layer alone would be 3 MB, and q, k, v, gate and up 1.9 of these.
PLAN_WITHOUT_WEIGHTS = {"int4": 2_200_000, "int8": 2_700_000}


@pytest.fixture(scope="module")
def rtx() -> Any:
    return tensorrt_rtx()


@pytest.fixture(
    scope="module", params=["int8", "int4", pytest.param("int4+offset", marks=pytest.mark.nightly)]
)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("quantized") / request.param
    return Bundle.open(bundles.export(EXAMPLE, folder, weights=request.param))


@pytest.mark.parametrize("sm", [86, pytest.param(120, marks=pytest.mark.nightly)])
def test_dense_graphs_are_built_and_plans_hold_integers(rtx: Any, bundle: Bundle, sm: int) -> None:
    model = bundle.manifest.model
    limits = ProfileLimits.of(model, Query(), 512)
    builder = PlanBuilder(rtx, (sm,))
    graphs = bundle.manifest.dense_graphs()
    for graph in (graphs[0], graphs[1], graphs[-1]):
        plan = memoryview(builder.build(bundle.path(graph), make_profiles(graph, limits), recorded=True))
        assert plan.nbytes > 1000, graph.name
        if (
            model.weights and model.weights.projections in PLAN_WITHOUT_WEIGHTS
        ):  # of others see docs/weights.md
            kernels = PLAN_WITHOUT_WEIGHTS[model.weights.projections]
            assert plan.nbytes < 1.1 * sum(stored_bytes(bundle, graph.name)) + kernels, graph.name


def stored_bytes(bundle: Bundle, name: str) -> list[int]:
    """What each weight of a graph takes on disk."""
    model = onnx.load(bundle.path(bundle.graph(name)), load_external_data=False)
    found = []
    for tensor in model.graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        found.append(int(where.get("length", 0)))
    return found


def outputs(
    model: str | bytes, path: Path, feed: dict[str, Any], names: list[str] | None = None
) -> list[NDArray[Any]]:
    """Of a graph by its file, or as bytes whose external data lie beside `path`."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found: list[NDArray[Any]] = session.run(names, feed)
    return found


def test_words_are_the_same_rows(bundle: Bundle) -> None:
    """Bit by bit, for every token: negative bytes borrow from their neighbours in a word."""
    path = bundle.path(bundle.graph("dense_00"))
    words = prepared(path)
    tokens = np.arange(bundle.manifest.model.vocab_size)
    feed = {"tokens": tokens, "positions": tokens}
    expected, found = (outputs(model, path, feed, ["residual_out"])[0] for model in (str(path), words))
    np.testing.assert_array_equal(found, expected)


def test_products_of_the_same_rows_become_one(bundle: Bundle) -> None:
    """Of int8 alone: TensorRT leaves the others as small as they are."""
    assert bundle.manifest.model.weights is not None
    path = bundle.path(bundle.graph("dense_01"))
    joined = prepared(path)
    model = onnx.load_from_string(joined)
    kinds = [node.op_type for node in model.graph.node]
    # o, gate and up, down, q and k and v; rotations have a Split each
    expected = (4, 2 + 2) if bundle.manifest.model.weights.projections == "int8" else (7, 2)
    assert (kinds.count("MatMul"), kinds.count("Split")) == expected
    assert not any(node.domain for node in model.graph.node)
    random = np.random.default_rng(0)
    feed = {
        value.name: random.standard_normal(
            [size.dim_value or 5 for size in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in model.graph.input
    }
    for mine, yours in zip(outputs(joined, path, feed), outputs(str(path), path, feed), strict=True):
        np.testing.assert_allclose(mine, yours, rtol=0, atol=2e-5 * np.abs(yours).max())
