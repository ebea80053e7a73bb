"""Where a result may be written: a regular file or none, outside of bundles, told before the work."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from h2o_runtime.errors import InputError, OutputError
from h2o_runtime.files.inputs import MOST_AT_ONCE, open_input, read_input
from h2o_runtime.files.outputs import check_target, replace_file


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with one of each kind."""
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    for name in ("engines", "onnx"):
        (tmp_path / "bundle" / name).mkdir(parents=True)
    for name in ("manifest.json", "onnx/dense_00.onnx"):
        (tmp_path / "bundle" / name).write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("device", "is a device"),
        ("fifo", "is a FIFO"),
        ("folder", "is a folder"),
        ("loop", "cannot be written"),
        ("bundle", "is a bundle; name a place outside of it"),
        ("bundle/manifest.json", "is inside the bundle"),
        ("bundle/engines/new", "is inside the bundle"),
        ("nowhere/new", "is not a folder that exists"),
        ("file/new", "cannot be written"),
        ("a" * 300, "cannot be written"),
    ],
)
def test_what_is_never_written(place: Path, name: str, sentence: str) -> None:
    before = sorted(place.rglob("*"))
    with pytest.raises(OutputError, match=sentence):
        check_target(place / name)
    with pytest.raises(OutputError, match=sentence):
        replace_file(place / name, "after")
    assert sorted(place.rglob("*")) == before
    assert (place / "bundle" / "manifest.json").read_text() == "{}"


def test_a_link_stays_and_its_file_is_replaced(place: Path) -> None:
    replace_file(place / "link", "after")
    assert (place / "link").is_symlink()
    assert (place / "file").read_text() == "after"


def test_a_link_in_the_way_of_the_temporary_file_is_not_followed(place: Path) -> None:
    (place / f".new.{socket.gethostname()}.{os.getpid()}.partial").symlink_to("file")
    replace_file(place / "new", b"new")
    assert (place / "file").read_text() == "before"
    assert (place / "new").read_bytes() == b"new"


WRITE_SLOWLY = """
import sys
from pathlib import Path
from h2o_runtime.files.outputs import replaced
with replaced(Path(sys.argv[1])) as partial, partial.open("w") as file:
    file.write("half")
    file.flush()
    print("half", flush=True)
    sys.stdin.read()
    file.write(" and half")
"""


def test_two_processes_that_write_the_same_file(place: Path) -> None:
    """Each replaces it with a whole one."""
    command = [sys.executable, "-c", WRITE_SLOWLY, place / "file"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as slow:
        assert slow.stdout is not None
        assert slow.stdout.readline() == "half\n"
        replace_file(place / "file", "whole")
        assert (place / "file").read_text() == "whole"
        slow.communicate("")
    assert slow.returncode == 0
    assert (place / "file").read_text() == "half and half"
    assert not list(place.glob(".*.partial"))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("device", "is a device"),
        ("fifo", "is a FIFO"),
        ("folder", "is a folder"),
        ("loop", "cannot be read"),
        ("nothing", "no such file"),
    ],
)
def test_what_is_never_read(place: Path, name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        open_input(place / name)


def test_a_size_is_looked_at_before_reading(place: Path) -> None:
    assert read_input(place / "link") == b"before"
    os.truncate(place / "file", 1 << 40)  # it has holes: the disk has room
    with pytest.raises(InputError, match="at most"):
        read_input(place / "file")
    with open_input(place / "file") as file, pytest.raises(ValueError, match="a read of"):
        file.read(MOST_AT_ONCE + 1)
