"""Integer weights as TensorRT for RTX takes them: graphs are built, and int4 stays as small as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from tests import bundles
from tests.engines import tensorrt_rtx

from h2o_export.engines.network import PlanBuilder
from h2o_export.engines.profiles import ProfileLimits, make_profiles
from h2o_export.engines.table import words_for_rows
from h2o_runtime.bundle import Bundle
from h2o_runtime.config import PrefillConfig

pytestmark = pytest.mark.timeout(300)
EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-llama"
PLAN_WITHOUT_WEIGHTS = 2_200_000  # kernels of two profiles; as floats a layer alone would be 3 MB


@pytest.fixture(scope="module")
def rtx() -> Any:
    return tensorrt_rtx()


@pytest.fixture(scope="module", params=["int8", "int4", "int4+offset"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("quantized") / request.param
    return Bundle.open(bundles.export(EXAMPLE, folder, weights=request.param))


@pytest.mark.parametrize("sm", [86, 120])
def test_dense_graphs_are_built_and_plans_hold_int4(rtx: Any, bundle: Bundle, sm: int) -> None:
    model = bundle.manifest.model
    limits = ProfileLimits.of(model, PrefillConfig(), 512)
    builder = PlanBuilder(rtx, (sm,))
    graphs = bundle.manifest.dense_graphs()
    for graph in (graphs[0], graphs[1], graphs[-1]):
        plan = memoryview(builder.build(bundle.path(graph), make_profiles(graph, limits), recorded=True))
        assert plan.nbytes > 1000, graph.name
        if model.weights and model.weights.projections == "int4":  # of others see docs/weights.md
            assert plan.nbytes < 1.1 * sum(stored_bytes(bundle, graph.name)) + PLAN_WITHOUT_WEIGHTS, (
                graph.name
            )


def stored_bytes(bundle: Bundle, name: str) -> list[int]:
    """What each weight of a graph takes on disk."""
    model = onnx.load(bundle.path(bundle.graph(name)), load_external_data=False)
    found = []
    for tensor in model.graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        found.append(int(where.get("length", 0)))
    return found


def test_words_are_the_same_rows(bundle: Bundle) -> None:
    """Bit by bit, for every token: negative bytes borrow from their neighbours in a word."""
    path = bundle.path(bundle.graph("dense_00"))
    words = words_for_rows(path)
    assert words is not None
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    tokens = np.arange(bundle.manifest.model.vocab_size)
    feed = {"tokens": tokens, "positions": tokens}
    expected, found = (
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(
            ["residual_out"], feed
        )[0]
        for model in (str(path), words)
    )
    np.testing.assert_array_equal(found, expected)


def test_graphs_without_a_table_are_left_alone(bundle: Bundle) -> None:
    assert words_for_rows(bundle.path(bundle.graph("dense_01"))) is None
