"""What h2o-compare does on a GPU, whose place the emulation takes, and on TensorRT's double."""

from __future__ import annotations

import shutil
import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import polygraphy.backend.trt
import pytest
from polygraphy.backend.onnxrt import OnnxrtRunner
from tests import bundles
from tests.engine_runtime import RuntimeDouble, plugin_library

import h2o_runtime.engines.machine as machine_module
from h2o_export.checkpoints import open_checkpoint
from h2o_export.comparison import ComparedBundle, GraphComparison, PipelineComparison
from h2o_export.engines.build import build
from h2o_export.engines.selection import BuildOptions, select_engines
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.engines import Machine
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.prefill import PrefillPolicy, Query, Window

POLICY = Query(chunk_size=48, batch_size=96, local=12, heavy=20, dense_tail=20)
WINDOW = Window(chunk_size=48, batch_size=96, local=12, heavy=20, window=8, heads="query")
NAME = "llama-g2-d64-llama3"


@pytest.fixture
def bundle(shared_folder: Path, tmp_path: Path) -> Bundle:
    source = bundles.named(shared_folder, NAME, "-small-chunks", prefill=POLICY)[1]
    return Bundle.open(shutil.copytree(source, tmp_path / "bundle"))


@pytest.fixture
def double(
    bundle: Bundle, tmp_path: Path, emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> RuntimeDouble:
    double = RuntimeDouble(emulated_cuda, bundle)
    monkeypatch.setitem(sys.modules, "tensorrt", double)
    monkeypatch.setattr(machine_module, "compute_capability", lambda: 87)
    monkeypatch.setattr(machine_module, "tensorrt_plugins", lambda: plugin_library(tmp_path))
    monkeypatch.setattr(polygraphy.backend.trt, "EngineFromBytes", lambda plan: plan.decode())
    monkeypatch.setattr(polygraphy.backend.trt, "TrtRunner", trt_runner(bundle))
    return double


def trt_runner(bundle: Bundle) -> Any:
    """Polygraphy's TrtRunner needs a GPU; a plan of the double is its graph's name."""

    def make(plan: str, name: str) -> OnnxrtRunner:
        path = bundle.path(bundle.graph(plan))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return OnnxrtRunner(session, name=name)

    return make


def make_engines(bundle: Bundle, context: int) -> None:
    options = BuildOptions("tensorrt", max_context=context, force=True)
    build(select_engines(bundle, options), Machine.here("tensorrt"), lambda name: None)


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(POLICY, id="query"),
        pytest.param(WINDOW, id="window, query heads", marks=pytest.mark.nightly),
    ],
)
def test_onnx_runtime_with_cuda_attention(
    policy: PrefillPolicy[Any],
    shared_folder: Path,
    emulated_cuda: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("H2O_EMULATION_EAGER", "1")
    variant = "-small-chunks" if policy == POLICY else "-small-chunks-window"
    checkpoint, folder = bundles.named(shared_folder, NAME, variant, prefill=policy)
    subject = ComparedBundle(Bundle.open(folder), on="cuda")
    graphs = GraphComparison(subject, None)
    ids = bundles.random_ids(110).tolist()
    rows = [*graphs.dense(ids[:64], str), *graphs.attention(["auto"], str)]
    truth = open_checkpoint(str(checkpoint))
    rows += PipelineComparison(subject, ids).against_checkpoint(truth, str)
    assert [row.graph for row in rows if not row.passed] == []
    assert {row.subject for row in rows} == {"onnxruntime", "native-cuda", "onnxruntime+native-cuda"}
    assert {row.graph for row in rows} >= {"dense_00", "dense_01", "dense_02", "phase1", "phase2", "decode"}


def test_tensorrt_engines_of_every_graph(bundle: Bundle, double: RuntimeDouble, shared_folder: Path) -> None:
    make_engines(bundle, 200)
    subject = ComparedBundle(bundle, "tensorrt")
    graphs = GraphComparison(subject, None)
    ids = bundles.random_ids(110).tolist()
    rows = [*graphs.dense(ids[:64], str), *graphs.attention(["auto"], str)]
    checkpoint = open_checkpoint(str(bundles.named(shared_folder, NAME)[0]))
    rows += PipelineComparison(subject, ids).against_checkpoint(checkpoint, str)
    assert [row.graph for row in rows if not row.passed] == []
    assert {(row.graph, row.subject) for row in rows} >= {
        *((f"dense_{part:02}", "tensorrt") for part in range(3)),
        *((name, by) for name in ("phase1", "phase2", "decode") for by in ("native-cuda", "tensorrt")),
    }
    assert str(plugin_library(bundle.folder.parent)) in double.libraries
    assert double.failures == []


def test_a_wrong_engine_is_told(
    bundle: Bundle, double: RuntimeDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_engines(bundle, 200)
    honest = OnnxrtRunner.infer_impl

    def wrong(runner: OnnxrtRunner, feed: Any) -> Any:
        outputs = honest(runner, feed)
        if runner.name != "tensorrt" or "memory_next" not in outputs:
            return outputs
        return OrderedDict((name, np.asarray(value) + (name == "o")) for name, value in outputs.items())

    monkeypatch.setattr(OnnxrtRunner, "infer_impl", wrong)
    rows = list(GraphComparison(ComparedBundle(bundle, "tensorrt"), None).attention(["auto"], str))
    assert {(row.graph, row.subject) for row in rows if not row.passed} == {("phase2", "tensorrt")}


def test_engines_without_room_for_what_is_compared(bundle: Bundle, double: RuntimeDouble) -> None:
    make_engines(bundle, 95)
    with pytest.raises(ConfigError, match="build them for 144 at least"):
        list(GraphComparison(ComparedBundle(bundle, "tensorrt"), None).attention(["auto"], str))
