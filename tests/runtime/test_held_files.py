"""Files of a loaded bundle are those that were opened, and a change in them is noticed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from h2o_runtime.bundles.held import HeldFiles
from h2o_runtime.errors import BundleChangedError
from h2o_runtime.generator import Generator

NAME = "weights.bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / NAME).write_bytes(b"as exported")
    return folder


def touch(file: Path) -> None:
    os.utime(file, ns=(1, 1))


@pytest.mark.parametrize(
    "change", [touch, lambda file: os.truncate(file, 2), lambda file: file.write_bytes(b"another one")]
)
def test_a_file_that_is_written_into_is_noticed(folder: Path, change: object) -> None:
    held = HeldFiles(folder)
    held.hold([NAME])
    held.check(held.names)
    change(folder / NAME)  # type: ignore[operator]
    with pytest.raises(BundleChangedError, match=r"weights\.bin: was written into while it was in use"):
        held.check(held.names)


def test_a_folder_that_is_replaced_changes_nothing(folder: Path) -> None:
    held = HeldFiles(folder)
    held.hold([NAME])
    held.check_places([NAME])
    folder.rename(folder.with_name("old"))
    folder.mkdir()
    (folder / NAME).write_bytes(b"of another bundle")
    held.check(held.names)
    assert held.path(NAME).read_bytes() == b"as exported"
    with pytest.raises(BundleChangedError, match=r"weights\.bin: was replaced or removed"):
        held.check_places([NAME])


def test_nothing_stays_open(folder: Path) -> None:
    held = HeldFiles(folder)
    held.hold([NAME])
    before = len(os.listdir("/proc/self/fd"))
    del held
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_packed_weights_that_are_cut_off_are_no_crash(tiny_bundle: Path, tmp_path: Path) -> None:
    """Their lost pages read as zeros, and the answer is an error, also after bundles of many other folders."""
    for number in range(100):
        (tmp_path / f"{number}" / NAME).parent.mkdir()
        (tmp_path / f"{number}" / NAME).write_bytes(b"")
        HeldFiles(tmp_path / f"{number}").hold([NAME])
    with Generator.load(tiny_bundle, context=64, dense_form="native", packed_weights=tmp_path) as generator:
        for file in tmp_path.glob("*.safetensors"):
            os.truncate(file, 100)
        with pytest.raises(BundleChangedError, match=r"\.safetensors: was written into"):
            generator.prefill([5, 6, 7])


def test_what_is_loaded_late_is_refused_where_its_files_are_gone(tiny_bundle: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_bundle, tmp_path / "copy")
    with Generator.load(copy, context=64, dense_form="exact") as generator:
        shutil.rmtree(copy)
        generator.prefill([5, 6, 7])
        with pytest.raises(BundleChangedError, match="was replaced or removed"):
            next(generator.embed([5, 6, 7]))
