"""Nothing outside a bundle's or a checkpoint's folder is read, and nothing that is no plain file is waited for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.engines import EngineManifest
from h2o_runtime.errors import BundleError, CheckpointError
from h2o_runtime.files.inputs import confined
from h2o_runtime.text import ChatTemplate, Tokenizer

pytestmark = pytest.mark.timeout(600)
OUTSIDE = ("../secret", "/etc/hostname", "sub/../../secret", "..", "a\0b")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("key")
    (tmp_path / "home" / "sub").mkdir(parents=True)
    (tmp_path / "home" / "own").write_text("here")
    return tmp_path / "home"


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_lead_out_are_refused(home: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"home: refers to .* outside of this folder"):
        confined(home, name, CheckpointError)


def test_links_that_lead_out_are_refused(home: Path) -> None:
    (home / "link").symlink_to("../secret")
    (home / "folder").symlink_to("..")
    for name in ("link", "folder/secret"):
        with pytest.raises(BundleError, match=r"home/.*: is a link to .*secret, outside of its folder"):
            confined(home, name)


def test_files_links_within_and_what_is_missing_are_left_to_the_reader(home: Path) -> None:
    (home / "link").symlink_to("own")
    (home / "loop").symlink_to("loop")
    for name in ("own", "link", "missing", "sub", "sub/missing", "loop", "x" * 300):
        assert confined(home, name) == home / name


def test_the_folder_itself_may_be_a_link(home: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(home)
    assert confined(tmp_path / "alias", "own").read_text() == "here"


def test_the_hubs_cache_links_to_its_blobs(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1f"
    (snapshot / "sub").mkdir(parents=True)
    (tmp_path / "models--a--b" / "blobs").mkdir()
    (tmp_path / "models--a--b" / "blobs" / "c0").write_text("tensors")
    (snapshot / "file").symlink_to("../../blobs/c0")
    (snapshot / "sub" / "file").symlink_to("../../../blobs/c0")
    (snapshot / "out").symlink_to("../../refs")
    assert confined(snapshot, "file").read_text() == "tensors"
    assert confined(snapshot, "sub/file").read_text() == "tensors"
    with pytest.raises(BundleError, match="outside of its folder"):
        confined(snapshot, "out")


def test_fifos_and_devices_are_refused_and_not_opened(home: Path) -> None:
    os.mkfifo(home / "fifo")
    with pytest.raises(BundleError, match=r"home/fifo: is a FIFO, not a file"):
        confined(home, "fifo")
    with pytest.raises(BundleError, match=r"/dev/zero: is a device, not a file"):
        confined(Path("/dev"), "zero")


# Who uses it


def altered(bundle: Path, change: Callable[[Any], object]) -> None:
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.unlink()  # the original may share it
    path.write_text(json.dumps(manifest))


CHANGES: dict[str, Callable[[Any], object]] = {
    "a graph's file": lambda m: m["graphs"][1].update(file="../secret.onnx"),
    "a graph's weights": lambda m: m["graphs"][1].update(weights=["/etc/hostname"]),
    "a file": lambda m: m["files"].update({"../secret": {"bytes": 3, "sha256": ""}}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_manifest_names_files_of_its_bundle(tiny_bundle: Path, tmp_path: Path, change: str) -> None:
    bundle = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    altered(bundle, CHANGES[change])
    with pytest.raises(BundleError, match=r"bundle: refers to .* outside of this folder"):
        Bundle.open(bundle)


@pytest.mark.parametrize(
    "name", ["manifest.json", "onnx/dense_01.onnx", "tokenizer.json", "chat_template.jinja"]
)
def test_a_fifo_in_a_bundle_is_not_waited_for(tiny_bundle: Path, tmp_path: Path, name: str) -> None:
    bundle = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    (bundle / name).unlink()
    os.mkfifo(bundle / name)
    with pytest.raises(BundleError, match=f"{name}: is a FIFO"):
        Bundle.open(bundle)


@pytest.mark.parametrize("load", [Tokenizer.load, ChatTemplate.load])
def test_a_fifo_among_the_texts_is_not_waited_for(tmp_path: Path, load: Callable[[Path], object]) -> None:
    for name in ("tokenizer.json", "chat_template.jinja"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(BundleError, match="is a FIFO"):
        load(tmp_path)


def test_a_fifo_as_engine_manifest_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(BundleError, match="is a FIFO"):
        EngineManifest.read(tmp_path)
