"""Weights are in an engine once, whether it has a profile for one token of its own or not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
from tests import bundles
from tests.engines import Double, tensorrt_rtx

from h2o_export.engines.build import build
from h2o_export.engines.network import PlanBuilder
from h2o_export.engines.profiles import ProfileLimits, make_profiles
from h2o_export.engines.selection import BuildOptions, select_engines
from h2o_export.engines.weights_once import stored_bytes
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import file_sha256
from h2o_runtime.engines import TARGETS, EngineManifest, Machine, Profile
from h2o_runtime.policies.prefill import Query

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-llama"


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.nightly)])
def test_two_profiles_share_the_weights(dtype: Literal["float32", "float16"], tmp_path: Path) -> None:
    """TensorRT for RTX keeps most matrices twice where a profile allows one row and no other."""
    rtx = tensorrt_rtx()
    bundle = Bundle.open(bundles.export(EXAMPLE, tmp_path / "bundle", dtype))
    limits = ProfileLimits.of(bundle.manifest.model, Query(), 512)
    graph = bundle.graph("dense_01")
    path = bundle.path(graph)
    builder = PlanBuilder(rtx, (86,))

    def size(profiles: Sequence[Profile]) -> int:
        return memoryview(builder.build(path, profiles, recorded=True)).nbytes

    profiles = make_profiles(graph, limits)
    assert len(profiles) == 2
    copied = size(profiles) - size(profiles[-1:])
    assert (
        copied < 0.4 * stored_bytes(path) + 500_000
    )  # the other profile's kernels; copies are 0.65 and them


# What h2o-build makes of a TensorRT that copies weights all the same


@pytest.fixture
def bundle(shared_folder: Path, tmp_path: Path) -> Bundle:
    source = bundles.named(shared_folder, "llama-g2-d64-llama3")[1]
    return Bundle.open(shutil.copytree(source, tmp_path / "bundle"))


def run(
    bundle: Bundle, folder: Path, monkeypatch: pytest.MonkeyPatch, copies: bool, profiles: int | None = None
) -> tuple[EngineManifest, list[tuple[str, int]]]:
    """Engines of a TensorRT whose plans hold the weights once, or once a profile; what it was asked to build."""
    asked = []

    def plan(self: PlanBuilder, model: Path, profiles: Sequence[Profile], recorded: bool = False) -> bytes:
        asked.append((model.stem, len(profiles)))
        times = len(profiles) if copies else 1
        return bytes(times * stored_bytes(model) + 1000 * len(profiles))

    monkeypatch.setattr(PlanBuilder, "build", plan)
    monkeypatch.setattr("h2o_export.engines.build.import_tensorrt", lambda target: Double())
    monkeypatch.setattr("h2o_export.engines.weights_once.KERNELS", 0)  # the model is smaller than kernels are
    library = folder / "libh2o_trt_plugins.so"
    library.write_bytes(b"plugins")
    options = BuildOptions("tensorrt", max_context=2048, profiles=profiles)
    machine = Machine(TARGETS["tensorrt"], "10.3.0", 87, library)
    return build(select_engines(bundle, options), machine, lambda name: None), asked


def names(manifest: EngineManifest, engine: str) -> list[str]:
    (spec,) = (spec for spec in manifest.engines if spec.name == engine)
    return [profile.name for profile in spec.profiles]


def test_a_dense_engine_that_would_hold_weights_twice_gets_one_profile(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, asked = run(bundle, tmp_path, monkeypatch, copies=True)
    assert asked[:4] == [("dense_00", 2), ("dense_00", 1), ("dense_01", 2), ("dense_01", 1)]
    folder = bundle.folder / "engines" / "tensorrt"
    for name in ("dense_00", "dense_01", "dense_02"):
        assert names(manifest, name) == ["prefill"]
        path = folder / f"{name}.plan"
        assert path.stat().st_size == stored_bytes(bundle.path(bundle.graph(name))) + 1000
        assert manifest.files[path.name].sha256 == file_sha256(path)
    assert names(manifest, "decode") == ["decode", "prefill"]  # it has no weights
    assert EngineManifest.read(folder) == manifest


@pytest.mark.parametrize(
    ("copies", "profiles", "expected"),
    [(False, None, ["decode", "prefill"]), (True, 2, ["decode", "prefill"]), (False, 1, ["prefill"])],
)
def test_profiles_that_cost_nothing_or_are_asked_for(
    bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    copies: bool,
    profiles: int | None,
    expected: list[str],
) -> None:
    manifest, asked = run(bundle, tmp_path, monkeypatch, copies, profiles)
    assert names(manifest, "dense_01") == expected
    if profiles is not None:
        assert (
            asked.count(("dense_01", profiles)) == len([name for name, _ in asked if name == "dense_01"]) == 1
        )
