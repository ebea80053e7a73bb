"""What an ordinary user may not read is told as that, and not as damage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.users import open_folder, ordinary_user

import h2o_plugins
from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import BundleError, OutputError
from h2o_runtime.files.outputs import check_target, make_private_folder


@pytest.fixture
def bundle(tiny_bundle: Path) -> Iterator[Path]:
    with open_folder() as folder:
        yield Path(shutil.copytree(tiny_bundle, folder / "home" / "bundle"))


def read_weights(folder: Path) -> None:
    bundle = Bundle.open(folder)
    if not os.access(h2o_plugins.__file__, os.R_OK, effective_ids=True):
        pytest.skip("this checkout lies where an ordinary user may not read")
    OnnxRuntimeBackend(bundle, threads=1).activate(("dense_01",))


@pytest.mark.parametrize("closed", ["..", ".", "manifest.json", "onnx", "onnx/weights/dense_01.bin"])
def test_a_bundle_that_may_not_be_read(bundle: Path, closed: str) -> None:
    (bundle / closed).chmod(0)
    with (
        ordinary_user(),
        pytest.raises(BundleError, match=r"Permission denied; check its permissions") as caught,
    ):
        read_weights(bundle)
    assert "again" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o555, 0o333], ids=["written", "listed"])
def test_a_folder_of_conversations_that_may_not_be_used(mode: int) -> None:
    with open_folder() as folder:
        folder.chmod(mode)
        with ordinary_user(), pytest.raises(OutputError, match="Permission denied; name another folder"):
            make_private_folder(folder)


def test_a_working_directory_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(OutputError, match=r"session: cannot be written: the working directory was removed"):
        check_target(Path("session"))
