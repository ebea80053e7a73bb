"""TensorRT for RTX builds without a GPU: its parser and builder must take every graph, for old and new GPUs."""

from __future__ import annotations

import fcntl
import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import onnx
import onnx.inliner
import pytest
from tests import bundles
from tests.engines import tensorrt_rtx
from tests.prefill import altered

from h2o_export.attention_graphs import AttentionGraph
from h2o_export.engines.build import build
from h2o_export.engines.network import PlanBuilder
from h2o_export.engines.profiles import ProfileLimits, make_profiles
from h2o_export.engines.selection import BuildOptions, select_engines
from h2o_export.policies import policy_graphs
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import file_sha256
from h2o_runtime.engines import Machine, Profile, TensorRange, open_engines
from h2o_runtime.errors import BackendError, Cancelled
from h2o_runtime.policies.prefill import Query

pytestmark = pytest.mark.timeout(600)
SMS = (86, 120)  # one build is for both, and fails where one of them is refused
SMALL = Query(chunk_size=64, batch_size=256, local=16, heavy=16)
CONTEXT = 512


@pytest.fixture(scope="module")
def rtx() -> Any:
    return tensorrt_rtx()


@pytest.fixture(scope="module", params=["float16", pytest.param("float32", marks=pytest.mark.nightly)])
def bundle(request: pytest.FixtureRequest, shared_folder: Path) -> Bundle:
    """Two layers: a first, a middle and a last dense graph."""
    checkpoint, single = bundles.named(shared_folder, "llama-g2-d64-llama3")
    half = shared_folder / "engines-float16"
    with (shared_folder / "engines-float16.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if request.param == "float16" and not half.exists():
            bundles.export(checkpoint, half, "float16")
    return Bundle.open(half if request.param == "float16" else single)


def limits(bundle: Bundle) -> ProfileLimits:
    return ProfileLimits.of(bundle.manifest.model, SMALL, CONTEXT)


def test_every_dense_graph_is_built(rtx: Any, bundle: Bundle) -> None:
    builder = PlanBuilder(rtx, SMS)
    for graph in bundle.manifest.dense_graphs():
        plan = builder.build(bundle.path(graph), make_profiles(graph, limits(bundle)), recorded=True)
        assert len(memoryview(plan)) > 1000, graph.name


@pytest.mark.parametrize("family", [pytest.param("qwen2-g4-d32", marks=pytest.mark.nightly), "qwen3-g2-d128"])
def test_biases_and_norms_of_other_families_are_built(rtx: Any, shared_folder: Path, family: str) -> None:
    bundle = Bundle.open(bundles.named(shared_folder, family)[1])
    builder = PlanBuilder(rtx, SMS)
    for graph in bundle.manifest.dense_graphs():
        builder.build(bundle.path(graph), make_profiles(graph, limits(bundle)), recorded=True)


def attention_graphs(bundle: Bundle, score: str, **changes: Any) -> tuple[AttentionGraph, ...]:
    window = {"window": 8} if score == "window" else {}
    return policy_graphs(altered(SMALL, score=score, **window, **changes), bundle.manifest.model.attention)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / f"{model.graph.name}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("bundle", "score", "heads"),
    [  # each two of the settings together once
        ("float32", "window", "query"),
        *(
            pytest.param(*settings, marks=pytest.mark.nightly)
            for settings in (
                ("float16", "colsum", "query"),
                ("float32", "colsum", "kv"),
                ("float16", "window", "kv"),
            )
        ),
    ],
    indirect=["bundle"],
)
def test_every_attention_graph_is_built_from_its_function_bodies(
    rtx: Any, bundle: Bundle, score: str, heads: str, tmp_path: Path
) -> None:
    builder = PlanBuilder(rtx, SMS)
    for graph in attention_graphs(bundle, score=score, heads=heads):
        plan = builder.build(saved(graph.model, tmp_path), make_profiles(graph.spec, limits(bundle)))
        assert len(memoryview(plan)) > 1000, graph.spec.name


# What TensorRT makes of a profile


def test_tensorrt_holds_the_profiles_that_were_asked_for(
    rtx: Any, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = bundle.graph("dense_01")
    first, second = make_profiles(graph, limits(bundle))
    seen: list[Any] = []
    add = rtx.IBuilderConfig.add_optimization_profile

    def spy(policy: Any, profile: Any) -> int:
        seen.append({name: tuple(map(tuple, profile.get_shape(name))) for name in first.shapes})
        index: int = add(policy, profile)
        return index

    monkeypatch.setattr(rtx.IBuilderConfig, "add_optimization_profile", spy)
    PlanBuilder(rtx, (86,)).build(bundle.path(graph), (first, second))
    assert seen[0]["attention"] == ((1, 4, 64), (1, 4, 64), (16, 4, 64))
    assert seen[1]["attention"] == ((1, 4, 64), (256, 4, 64), (256, 4, 64))
    assert seen[1]["residual"] == ((1, 64), (256, 64), (256, 64))


@pytest.mark.parametrize("rows", [(8, 4, 4), (1, 8, 4)], ids=["least above most", "tuned for more than most"])
def test_a_profile_that_contradicts_itself_is_an_error(
    rtx: Any, bundle: Bundle, rows: tuple[int, int, int]
) -> None:
    graph = bundle.graph("dense_02")
    shapes = {
        tensor.name: TensorRange(
            **{key: (n, *tensor.shape[1:]) for key, n in zip(("min", "opt", "max"), rows, strict=True)}
        )
        for tensor in graph.inputs
    }
    with pytest.raises(BackendError, match=r"dense_02.onnx: TensorRT (cannot build it|refuses the profile)"):
        PlanBuilder(rtx, (86,)).build(bundle.path(graph), (Profile(name="prefill", shapes=shapes),))


def test_a_file_that_is_no_graph_is_an_error(rtx: Any, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"not an ONNX file")
    with pytest.raises(BackendError, match=r"x\.onnx: TensorRT's parser refuses it: "):
        PlanBuilder(rtx, (86,)).build(tmp_path / "x.onnx", ())


def test_a_stopped_build_ends_at_its_next_step(rtx: Any, bundle: Bundle) -> None:
    stop = Event()
    stop.set()
    graph = bundle.graph("dense_01")
    with pytest.raises(Cancelled):
        PlanBuilder(rtx, (86,), stop=stop).build(bundle.path(graph), make_profiles(graph, limits(bundle)))


# A whole build


@pytest.fixture(scope="module")
def machine() -> Machine:
    tensorrt_rtx()
    return replace(Machine.here("tensorrt-rtx"), sm=86)  # as if it had such a GPU


@pytest.fixture(scope="module")
def engines(shared_folder: Path, machine: Machine) -> Bundle:
    """A bundle with engines for SM86, built once."""
    source, target = bundles.named(shared_folder, "llama-g2-d64-llama3")[1], shared_folder / "built-bundle"
    with (shared_folder / "built-bundle.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "engines").exists():
            shutil.copytree(source, target)
            options = BuildOptions("tensorrt-rtx", (86,), max_context=2048, batch_size=1024)
            build(select_engines(Bundle.open(target), options), machine, lambda name: None)
    return Bundle.open(target)


def test_engines_that_were_built_here_open_here(engines: Bundle, machine: Machine, rtx: Any) -> None:
    opened = open_engines(engines, machine, context=2048)
    manifest = opened.manifest
    assert (manifest.target, manifest.tensorrt, manifest.sm) == ("tensorrt-rtx", rtx.__version__, (86,))
    assert (manifest.dtype, manifest.max_context, manifest.batch_size) == ("float32", 2048, 1024)
    assert manifest.plugins is None
    assert manifest.checkpoint == engines.manifest.checkpoint.sha256
    assert [engine.name for engine in manifest.engines] == ["dense_00", "dense_01", "dense_02"]
    on_disk = {path.name for path in opened.folder.iterdir()}
    assert on_disk == {"dense_00.plan", "dense_01.plan", "dense_02.plan", "manifest.json"}
    for name, spec in manifest.files.items():
        assert spec.sha256 == file_sha256(opened.folder / name)


def test_the_bundle_itself_stays_as_it_was(engines: Bundle) -> None:
    assert engines.altered_files() == []
