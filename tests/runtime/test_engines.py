"""Engines are opened when everything fits, and refused in one sentence when anything does not."""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from tests.model_specs import grouped

import h2o_plugins
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import CheckpointSpec, FileSpec, Manifest
from h2o_runtime.engines import (
    TARGETS,
    EngineManifest,
    EngineSpec,
    Machine,
    Profile,
    TensorRange,
    bundle_sha256,
    open_engines,
)
from h2o_runtime.engines.machine import compute_capability, find_plugins, find_target, import_tensorrt
from h2o_runtime.errors import BackendError, BundleError, ConfigError, H2OError
from h2o_runtime.names import TargetName
from h2o_runtime.policies.prefill import Query


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Place:
    """A bundle with engines, a plugin library and the machine that they were built on."""

    bundle: Bundle
    machine: Machine

    @property
    def folder(self) -> Path:
        return self.bundle.folder / "engines" / "tensorrt"

    def rewrite(self, **changes: Any) -> None:
        EngineManifest.read(self.folder).model_copy(update=changes).write(self.folder)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    bundle = Bundle(
        tmp_path,
        Manifest(
            created_by={},
            opset={"": 18},
            checkpoint=CheckpointSpec(source="somewhere", sha256="c" * 64),
            model=grouped(4, 2).model_copy(update={"dtype": "float16"}),
            prefill=Query(),
            graphs=(),
            files={"onnx/dense_00.onnx": FileSpec(bytes=3, sha256="a" * 64)},
        ),
    )
    library = tmp_path / "libh2o_trt_plugins.so"
    library.write_bytes(b"plugins")
    place = Place(bundle, Machine(TARGETS["tensorrt"], "10.3.0", 87, library))
    place.folder.mkdir(parents=True)
    (place.folder / "dense_00.plan").write_bytes(b"plan")
    shape = TensorRange(min=(1,), opt=(1,), max=(1,))
    profile = Profile(name="decode", shapes={"tokens": shape})
    EngineManifest(
        target="tensorrt",
        tensorrt="10.3.0",
        sm=(87,),
        plugins=sha256(b"plugins"),
        dtype="float16",
        max_context=4096,
        batch_size=1024,
        prefill=Query(),
        checkpoint="c" * 64,
        bundle=bundle_sha256(bundle.manifest),
        engines=(EngineSpec(name="dense_00", file="dense_00.plan", profiles=(profile,)),),
        files={"dense_00.plan": FileSpec(bytes=4, sha256=sha256(b"plan"))},
    ).write(place.folder)
    return place


def test_engines_that_fit_are_opened(place: Place) -> None:
    engines = open_engines(place.bundle, place.machine, context=4096)
    assert engines.plan("dense_00").read_bytes() == b"plan"
    with pytest.raises(BundleError, match="no engine was built from graph 'dense_07'"):
        engines.plan("dense_07")


def change_plan(place: Place) -> None:
    (place.folder / "dense_00.plan").write_bytes(b"plaN")


def cut_plan(place: Place) -> None:
    (place.folder / "dense_00.plan").write_bytes(b"pla")


def remove_plan(place: Place) -> None:
    (place.folder / "dense_00.plan").unlink()


def export_again(place: Place) -> None:
    files = {"onnx/dense_00.onnx": FileSpec(bytes=3, sha256="b" * 64)}
    place.bundle = replace(place.bundle, manifest=place.bundle.manifest.model_copy(update={"files": files}))


def another_checkpoint(place: Place) -> None:
    checkpoint = CheckpointSpec(source="somewhere", sha256="d" * 64)
    place.bundle = replace(
        place.bundle, manifest=place.bundle.manifest.model_copy(update={"checkpoint": checkpoint})
    )


def change_plugins(place: Place) -> None:
    assert place.machine.plugins is not None
    place.machine.plugins.write_bytes(b"other plugins")


def on(**changes: Any) -> Callable[[Place], None]:
    def move(place: Place) -> None:
        place.machine = replace(place.machine, **changes)

    return move


def broken_manifest(text: str) -> Callable[[Place], None]:
    return lambda place: (place.folder / "manifest.json").write_text(text) and None


MISFITS: list[tuple[Callable[[Place], Any], type[H2OError], str]] = [
    (
        on(tensorrt="10.13.3"),
        BackendError,
        "built with TensorRT 10.3.0, but this machine has TensorRT 10.13.3",
    ),
    (on(sm=110), BackendError, "built for a GPU of SM87, the one here is SM110"),
    (on(sm=None), BackendError, "built for a GPU of SM87, and no NVIDIA GPU was found here"),
    (on(plugins=None), BackendError, "needs the plugin library libh2o_trt_plugins.so"),
    (change_plugins, BackendError, "its engines were built with another plugin library than"),
    (change_plan, BundleError, "dense_00.plan: its content is not what h2o-build wrote"),
    (cut_plan, BundleError, "dense_00.plan: has 3 bytes, the manifest says 4: truncated or replaced"),
    (remove_plan, BundleError, "dense_00.plan: missing"),
    (export_again, BundleError, "the bundle was exported again after its engines were built"),
    (another_checkpoint, BundleError, "built from another checkpoint than the bundle holds now"),
    (lambda place: place.rewrite(target="tensorrt-rtx"), BundleError, "holds engines of target tensorrt-rtx"),
    (lambda place: (place.folder / "manifest.json").unlink(), BundleError, "no engines here: h2o-build"),
    (broken_manifest("{"), BundleError, "manifest.json: cannot be read as JSON"),
    (broken_manifest('{"format": 99}'), BundleError, "engine format 99, this version reads 2"),
    (broken_manifest("[]"), BundleError, "engine format None"),
    (broken_manifest('{"format": 2}'), BundleError, "manifest.json: target: Field required"),
]


@pytest.mark.parametrize(("spoil", "error", "says"), MISFITS)
def test_engines_that_do_not_fit_are_refused(
    place: Place, spoil: Callable[[Place], Any], error: type[H2OError], says: str
) -> None:
    spoil(place)
    with pytest.raises(error, match=says) as caught:
        open_engines(place.bundle, place.machine, context=4096)
    assert "\n" not in str(caught.value)
    assert any(hint in str(caught.value) for hint in ("h2o-build", "onnxruntime backend", "none was given"))


def test_more_tokens_than_built_for_are_refused(place: Place) -> None:
    says = "context is 4097, and the engines were built for at most 4096.* --ctx-size 4097"
    with pytest.raises(ConfigError, match=says) as caught:
        open_engines(place.bundle, place.machine, context=4097)
    assert caught.value.field == "context"


def test_a_bundles_hash_is_of_its_graphs_and_weights() -> None:
    def state(**files: str) -> str:
        specs = {name.replace("__", "/"): FileSpec(bytes=1, sha256=hash) for name, hash in files.items()}
        return bundle_sha256(SimpleNamespace(files=specs))  # type: ignore[arg-type]

    base = state(onnx__a="1", onnx__b="2", tokenizer="3")
    assert base == state(tokenizer="9", onnx__b="2", onnx__a="1")
    assert base != state(onnx__a="1", onnx__b="1", tokenizer="3")
    assert base != state(onnx__a="1", tokenizer="3")


# The machine


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="target must be one of tensorrt, tensorrt-rtx, but is 'cuda'"):
        find_target("cuda")


def test_every_name_of_a_target_is_a_target() -> None:
    assert tuple(TARGETS) == get_args(TargetName)


@pytest.mark.parametrize("name", TARGETS)
def test_a_missing_package_says_which_extra_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in TARGETS[name].modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendError, match=rf"is not installed: pip install 'h2o-edge\[{name}\]'"):
        import_tensorrt(TARGETS[name])


def test_a_folder_named_like_the_package_is_not_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = replace(TARGETS["tensorrt"], modules=("h2o_test_tensorrt",))
    (tmp_path / "h2o_test_tensorrt").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendError, match="TensorRT is not installed"):
        import_tensorrt(target)


@pytest.mark.parametrize(
    "content", ["raise ImportError('libnvinfer.so.10: no such file')", "import h2o_test_absent"]
)
def test_a_package_that_does_not_load_says_why(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "h2o_test_broken.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    target = replace(TARGETS["tensorrt"], modules=("h2o_test_broken",))
    with pytest.raises(BackendError, match=r"cannot be loaded .*(libnvinfer|h2o_test_absent)"):
        import_tensorrt(target)
    sys.modules.pop("h2o_test_broken", None)


def test_the_plugin_library_is_found_or_its_absence_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h2o_plugins, "__path__", [str(tmp_path / "sources"), str(tmp_path)])
    with pytest.raises(BackendError, match=r"not part of this installation: build it .* plugins=FILE"):
        find_plugins(None)
    library = tmp_path / "libh2o_trt_plugins.so"
    with pytest.raises(BackendError, match="no such file"):
        find_plugins(library)
    library.write_bytes(b"")
    assert find_plugins(None) == find_plugins(library) == library


class Driver:
    """libcuda with one GPU of compute capability 11.0, as a Jetson Thor has it."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return int(self.fails == "init")

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        return int(self.fails == "device")

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        value._obj.value = {75: 11, 76: 0}[attribute]
        return int(self.fails == "attribute")


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (Driver(), 110),
        (Driver("init"), None),
        (Driver("device"), None),
        (Driver("attribute"), None),
        (None, None),
    ],
)
def test_the_compute_capability_comes_from_the_driver(
    driver: Driver | None, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> Driver:
        assert name == "libcuda.so.1"
        if driver is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert compute_capability() == expected


def test_importing_the_loader_loads_no_tensorrt() -> None:
    import subprocess

    script = "import sys, h2o_runtime.engines; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "h2o_runtime" in loaded
    assert not loaded & {"tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings", "torch", "onnx", "h2o_export"}


def test_the_manifest_is_readable_json(place: Place) -> None:
    raw = json.loads((place.folder / "manifest.json").read_text())
    assert raw["sm"] == [87]
    assert raw["engines"][0]["profiles"][0]["shapes"]["tokens"]["max"] == [1]
