"""TensorRT for RTX builds without a GPU: its parser and builder must take every graph, for two generations of GPUs."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, Literal

import onnx
import onnx.inliner
import pytest
from tests import bundles
from tests.engines import tensorrt_rtx

from h2o_export.attention import AttentionGraph, AttentionGraphBuilder
from h2o_export.engines.build import build
from h2o_export.engines.job import BuildOptions, make_job
from h2o_export.engines.network import PlanBuilder
from h2o_export.engines.profiles import Limits, make_profiles
from h2o_runtime.bundle import Bundle
from h2o_runtime.config import PrefillConfig
from h2o_runtime.engines import EngineManifest, Machine, Profile, TensorRange, open_engines
from h2o_runtime.errors import BackendError, BundleError, Cancelled, ConfigError
from h2o_runtime.manifest import file_sha256

pytestmark = pytest.mark.timeout(300)
SMS = (86, 120)
DTYPES = ("float32", "float16")
SMALL = PrefillConfig(chunk_size=64, batch_size=256, local=16, heavy=16, sink=2, score_window=8)
CONTEXT = 512
DType = Literal["float32", "float16"]


@pytest.fixture(scope="module")
def rtx() -> Any:
    return tensorrt_rtx()


@pytest.fixture(scope="module", params=DTYPES)
def bundle(request: pytest.FixtureRequest, shared_folder: Path) -> Bundle:
    """Two layers: a first, a middle and a last dense graph."""
    checkpoint, single = bundles.named(shared_folder, "llama-g2-d64-llama3")
    half = shared_folder / "engines-float16"
    with (shared_folder / "engines-float16.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if request.param == "float16" and not half.exists():
            bundles.export(checkpoint, half, "float16")
    return Bundle.open(half if request.param == "float16" else single)


def limits(bundle: Bundle) -> Limits:
    return Limits.of(bundle.manifest.model, SMALL, CONTEXT)


@pytest.mark.parametrize("sm", SMS)
def test_every_dense_graph_is_built(rtx: Any, bundle: Bundle, sm: int) -> None:
    builder = PlanBuilder(rtx, (sm,))
    for graph in bundle.manifest.dense_graphs():
        plan = builder.build(bundle.path(graph), make_profiles(graph, limits(bundle)))
        assert len(memoryview(plan)) > 1000, graph.name


@pytest.mark.parametrize("family", ["qwen2-g4-d32", "qwen3-g2-d128"])
def test_biases_and_norms_of_other_families_are_built(rtx: Any, shared_folder: Path, family: str) -> None:
    bundle = Bundle.open(bundles.named(shared_folder, family)[1])
    builder = PlanBuilder(rtx, SMS)
    for graph in bundle.manifest.dense_graphs():
        builder.build(bundle.path(graph), make_profiles(graph, limits(bundle)))


def attention_graphs(bundle: Bundle, **changes: Any) -> tuple[AttentionGraph, ...]:
    model: Any = bundle.manifest.model  # it has the sizes that the builder asks for
    return AttentionGraphBuilder(model, replace(SMALL, **changes), bundle.manifest.model.dtype).all()


def inlined(graph: AttentionGraph, folder: Path) -> Path:
    """The graph in standard operators alone. The parser's own inlining mixes up names of different bodies."""
    model = onnx.inliner.inline_local_functions(graph.model)
    del model.functions[:]
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    path = folder / f"{graph.spec.name}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize(("score", "score_heads"), itertools.product(("colsum", "window"), ("kv", "query")))
def test_every_attention_graph_is_built_from_its_function_bodies(
    rtx: Any, bundle: Bundle, sm: int, score: str, score_heads: str, tmp_path: Path
) -> None:
    builder = PlanBuilder(rtx, (sm,))
    for graph in attention_graphs(bundle, score=score, score_heads=score_heads):
        plan = builder.build(inlined(graph, tmp_path), make_profiles(graph.spec, limits(bundle)))
        assert len(memoryview(plan)) > 1000, graph.spec.name
