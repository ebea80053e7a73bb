"""What h2o-build asks of TensorRT, which itself needs a GPU: a double records it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import onnx
import pytest
from tests import bundles
from tests.engines import Double

from h2o_export.engines.build import build
from h2o_export.engines.selection import BuildOptions, select_engines
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import file_sha256
from h2o_runtime.engines import TARGETS, EngineManifest, Machine, open_engines
from h2o_runtime.errors import BackendError, BundleError, OutputError
from h2o_runtime.operators import OPERATORS
from h2o_runtime.policies.prefill import ColumnSum

GRAPHS = ["dense_00", "dense_01", "dense_02", "phase1", "phase2", "decode"]


@pytest.fixture
def bundle(shared_folder: Path, tmp_path: Path) -> Bundle:
    prefill = ColumnSum(local=256, heavy=256)
    source = bundles.named(shared_folder, "llama-g2-d64-llama3", "-colsum", prefill=prefill)[1]
    return Bundle.open(shutil.copytree(source, tmp_path / "bundle"))


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    double = Double()
    monkeypatch.setitem(sys.modules, "tensorrt", double)
    return double


@pytest.fixture
def machine(double: Double, tmp_path: Path) -> Machine:
    library = tmp_path / "libh2o_trt_plugins.so"
    library.write_bytes(b"plugins")
    return Machine(TARGETS["tensorrt"], double.__version__, 87, library)


def run(bundle: Bundle, machine: Machine, force: bool = False) -> EngineManifest:
    options = BuildOptions("tensorrt", max_context=2048, force=force)
    return build(select_engines(bundle, options), machine, lambda name: None)


def test_every_graph_becomes_an_engine(bundle: Bundle, machine: Machine, double: Double) -> None:
    manifest = run(bundle, machine)
    assert [engine.name for engine in manifest.engines] == list(double.built) == GRAPHS
    assert (manifest.tensorrt, manifest.sm) == ("10.3.0", (87,))
    assert machine.plugins is not None
    assert manifest.plugins == file_sha256(machine.plugins)
    assert double.libraries == [str(machine.plugins)]
    engines = open_engines(bundle, machine, context=2048)
    assert engines.manifest == manifest
    assert [engines.plan(name).read_bytes().decode() for name in GRAPHS] == GRAPHS


def test_networks_are_strongly_typed_and_float32_means_float32(
    bundle: Bundle, machine: Machine, double: Double
) -> None:
    run(bundle, machine)
    assert {build.flags for build in double.built.values()} == {1 << 1}
    assert all(build.cleared == [int(double.BuilderFlag.TF32)] for build in double.built.values())


def test_engines_that_decode_records_allocate_nothing_at_run_time(
    bundle: Bundle, machine: Machine, double: Double
) -> None:
    """Where TensorRT has a word for it, which TensorRT for RTX has. Attention is recorded without engines."""
    run(bundle, machine)
    flag = int(double.BuilderFlag.REQUIRE_USER_ALLOCATION)
    assert {name for name, build in double.built.items() if build.set == [flag]} == set(GRAPHS[:3])


def test_attention_operators_are_plugins_and_nothing_else(
    bundle: Bundle, machine: Machine, double: Double
) -> None:
    """Function bodies are gone, which the parser would prefer; attributes of the operators stay."""
    run(bundle, machine)
    for name in ("phase1", "phase2", "decode"):
        model, source = double.built[name].model, onnx.load(bundle.folder / "onnx" / f"{name}.onnx")
        assert model is not None
        assert len(source.functions) == len(OPERATORS)
        assert len(model.functions) == 0
        plugins = [node for node in model.graph.node if node.domain == "h2o"]
        originals = [node for node in source.graph.node if node.domain == "h2o"]
        assert len(plugins) == len(originals) > 0
        assert len(model.graph.node) == len(source.graph.node)
        for plugin, original in zip(plugins, originals, strict=True):
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in plugin.attribute}
            assert attributes.pop("plugin_namespace") == b"h2o"
            assert attributes.pop("plugin_version") == b"1"
            assert attributes == {a.name: onnx.helper.get_attribute_value(a) for a in original.attribute}
        beside = onnx.load(bundle.folder / "engines" / "tensorrt" / f"{name}.onnx")
        assert beside == model


def test_numbers_are_given_for_shape_inputs_only(bundle: Bundle, machine: Machine, double: Double) -> None:
    double.shape_inputs = {"chunk_range"}
    run(bundle, machine)
    (phase2,) = double.built["phase2"].profiles
    assert phase2["chunk_range ="] == ((0, 1), (1024, 2048), (1024, 2048))
    assert "chunk_range" not in phase2
    decode, _ = double.built["decode"].profiles
    assert decode["length"] == ((), (), ())


def test_one_timing_cache_serves_all_graphs_and_the_next_build(
    bundle: Bundle, machine: Machine, double: Double
) -> None:
    run(bundle, machine)
    seen = [build.cache for build in double.built.values()]
    assert seen == ["".join(f"{name} " for name in GRAPHS[:i]).encode() for i in range(len(GRAPHS))]
    cache = bundle.folder / "engines" / "tensorrt" / "timing.cache"
    everything = "".join(f"{name} " for name in GRAPHS).encode()
    assert cache.read_bytes() == everything
    run(bundle, machine, force=True)
    assert double.built["dense_00"].cache == everything


def test_a_timing_cache_of_another_gpu_is_left_behind(
    bundle: Bundle, machine: Machine, double: Double
) -> None:
    run(bundle, machine)
    double.refuse_cache = True
    run(bundle, machine, force=True)
    assert double.built["dense_00"].cache == b""


def test_engines_stay_until_they_are_to_be_replaced(bundle: Bundle, machine: Machine, double: Double) -> None:
    run(bundle, machine)
    double.built.clear()
    with pytest.raises(OutputError, match="engines are there already; add `force`"):
        run(bundle, machine)
    assert not double.built


def test_a_plugin_library_that_does_not_load(bundle: Bundle, machine: Machine, double: Double) -> None:
    double.refuse_library = RuntimeError("undefined symbol: getPluginCreators")
    with pytest.raises(
        BackendError, match=r"libh2o_trt_plugins.so: TensorRT cannot load it: undefined symbol"
    ):
        run(bundle, machine)
    assert not (bundle.folder / "engines").exists()


def test_a_broken_attention_graph_leaves_nothing_half_written(
    bundle: Bundle, machine: Machine, double: Double
) -> None:
    path = bundle.folder / "onnx" / "phase2.onnx"
    path.write_bytes(b"not an ONNX file")
    with pytest.raises(BundleError, match=r"phase2.onnx: not a readable ONNX file"):
        run(bundle, machine)
    assert not (bundle.folder / "engines").exists()
