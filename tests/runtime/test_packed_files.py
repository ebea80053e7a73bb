"""Packed weights in a folder: mapped by later starts, and never used where they do not fit."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import bundles

from h2o_runtime import Generator
from h2o_runtime.dense_graphs import packed_files
from h2o_runtime.errors import ConfigError, OutputError

PROMPT = bundles.random_ids(70, 3).tolist()
GRAPH = "dense_01-*.safetensors"


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return named(shared_folder, "int8")


def named(folder: Path, weights: str) -> Path:
    settings = {} if weights == "float" else {"weights": weights}
    return bundles.named(folder, "llama-g2-d64-llama3", f"-{weights}" if settings else "", **settings)[1]


def answer(bundle: Path, folder: Path | None, verify: bool = False) -> NDArray[np.float32]:
    """Logits of a prompt and of a step after it, [2, vocab]."""
    with Generator.load(
        bundle,
        context=400,
        threads=1,
        device="cpu",
        dense_form="native",
        packed_weights=folder,
        verify=verify,
    ) as generator:
        return np.stack([generator.prefill(PROMPT).copy(), generator.decode(5).copy()])


def times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@pytest.mark.parametrize("weights", ["float", "int8", "int4+offset"])
def test_a_later_start_maps_what_the_first_one_wrote(
    weights: str, shared_folder: Path, tmp_path: Path
) -> None:
    bundle = named(shared_folder, weights)
    expected = answer(bundle, None)
    np.testing.assert_array_equal(answer(bundle, tmp_path), expected)
    written = times(tmp_path)
    assert len(written) == len(list((bundle / "onnx").glob("dense_*.onnx")))
    np.testing.assert_array_equal(answer(bundle, tmp_path), expected)
    assert times(tmp_path) == written


def test_other_tools_read_the_files(bundle: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    answer(bundle, tmp_path)
    (file,) = tmp_path.glob(GRAPH)
    arrays = safetensors.load_file(file)
    assert {name.rpartition("/")[2] for name in arrays} == {"weights", "scales"}
    assert all(array.ndim == 1 and array.size for array in arrays.values())


def test_processes_share_the_memory_of_the_files(bundle: Path, tmp_path: Path) -> None:
    with Generator.load(
        bundle, context=400, threads=1, device="cpu", dense_form="native", packed_weights=tmp_path
    ) as generator:
        generator.prefill(PROMPT)
        mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    found = {Path(line[5]).name: line[1] for line in mapped if line[5:] and str(tmp_path) in line[5]}
    assert found.keys() == times(tmp_path).keys()
    assert set(found.values()) == {"r--s"}  # shared, and not writable


def of_another_graph(file: Path) -> None:
    (other,) = file.parent.glob("dense_02-*")
    shutil.copy(other, file)


def without_an_array(content: bytes) -> bytes:
    """Well-formed, as another version might write it."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    end = header.pop(list(header)[-1])["data_offsets"][0]
    told = json.dumps(header).encode().ljust(start - 8)
    return content[:8] + told + content[start : start + end]


def folder_in_its_place(file: Path) -> None:
    file.unlink()
    file.mkdir()


CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda content: content[:-64],
    "empty": lambda content: b"",
    "bad header": lambda content: content.replace(b'"dtype"', b'"dtypo"', 1),
    "huge header": lambda content: b"\xff" * 8 + content[8:],
    "without an array": without_an_array,
}
PLACES = {"of another graph": of_another_graph, "folder in its place": folder_in_its_place}


@pytest.mark.parametrize("damage", [*CONTENTS, *PLACES])
def test_a_file_that_does_not_fit_is_not_used(
    damage: str, bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = answer(bundle, tmp_path)
    (file,) = tmp_path.glob(GRAPH)
    before = file.read_bytes()
    if damage in CONTENTS:
        file.write_bytes(CONTENTS[damage](before))
    else:
        PLACES[damage](file)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(answer(bundle, tmp_path), expected)
    assert f"{file}: not used" in caplog.text
    if damage == "folder in its place":
        assert "packed weights are not kept" in caplog.text
    else:
        assert file.read_bytes() == before


def test_a_full_disk_costs_one_warning(
    bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OutputError("no space left on device")

    monkeypatch.setattr(packed_files, "write", full)
    expected = answer(bundle, None)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(answer(bundle, tmp_path), expected)
    (told,) = [record for record in caplog.records if "packed weights" in record.message]
    assert "no space left" in told.message


def test_content_is_compared_with_its_hash_on_request(
    bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = answer(bundle, tmp_path)
    (file,) = tmp_path.glob(GRAPH)
    before = file.read_bytes()
    file.write_bytes(before[:-100] + bytes([before[-100] ^ 64]) + before[-99:])
    np.testing.assert_array_equal(answer(bundle, tmp_path, verify=True), expected)
    assert "its content is not what was written" in caplog.text
    assert file.read_bytes() == before


KILLED = """
import os, sys
from h2o_runtime import Generator
from h2o_runtime.files import outputs
replace = os.replace
def replace_some(source, target, left=[int(sys.argv[3])]):
    left[0] -= 1
    os.kill(os.getpid(), 9) if left[0] < 0 else replace(source, target)
outputs.os.replace = replace_some
Generator.load(sys.argv[1], context=400, threads=1, device="cpu", dense_form="native", packed_weights=sys.argv[2])
"""


def test_nothing_is_left_of_what_a_killed_process_was_writing(bundle: Path, tmp_path: Path) -> None:
    expected = answer(bundle, None)
    command = [sys.executable, "-c", KILLED, bundle, tmp_path, "1"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (partial,) = tmp_path.glob(".*.partial")
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    np.testing.assert_array_equal(answer(bundle, tmp_path), expected)
    assert not partial.exists()


def test_a_folder_that_does_nothing_is_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`packed_weights` has no effect here"):
        Generator.load(bundle, device="cpu", dense_form="exact", packed_weights=tmp_path)


def test_places_that_are_no_folders_of_their_own_are_refused(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, sentence in ((tmp_path / "file", "not a folder"), (bundle / "onnx", "inside the bundle")):
        with pytest.raises(OutputError, match=sentence):
            Generator.load(bundle, device="cpu", dense_form="native", packed_weights=place)
