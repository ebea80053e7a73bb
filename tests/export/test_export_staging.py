"""A bundle is there whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from h2o_export.staging import staged_folder
from h2o_runtime.errors import OutputError
from h2o_runtime.process import STOPPING


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bundle_at(folder: Path, content: str = "old") -> Path:
    folder.mkdir()
    (folder / "manifest.json").write_text(content)
    return folder


def test_the_folder_has_the_users_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with staged_folder(tmp_path / "bundle", force=False):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "bundle").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("exists", [False, True])
def test_an_interruption_leaves_what_was_there(
    tmp_path: Path, error: type[BaseException], exists: bool
) -> None:
    target = tmp_path / "bundle"
    if exists:
        bundle_at(target)

    def write_half() -> None:
        with staged_folder(target, force=True) as folder:
            (folder / "half").mkdir()
            (folder / "half" / "file").write_text("new")
            raise error

    with pytest.raises(error):
        write_half()
    assert names(tmp_path) == (["bundle"] if exists else [])
    if exists:
        assert names(target) == ["manifest.json"]


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_while_it_takes_its_place_leaves_it_whole(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def interrupted(*paths: Path) -> None:
        signal.raise_signal(number)
        replace(*paths)

    monkeypatch.setattr(os, "replace", interrupted)
    before = signal.signal(number, signal.default_int_handler)
    try:
        with staged_folder(bundle_at(tmp_path / "bundle"), force=True) as folder:
            (folder / "manifest.json").write_text("new")
    finally:
        signal.signal(number, before)
    assert names(tmp_path) == ["bundle"]
    assert (tmp_path / "bundle" / "manifest.json").read_text() == "new"


def test_two_at_one_time_do_not_share_a_folder(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    with staged_folder(target, force=False) as folder:
        (folder / "manifest.json").write_text("first")
        with (
            pytest.raises(OutputError, match=r"bundle: is being written by another command; wait for it"),
            staged_folder(target, force=True),
        ):
            pytest.fail("the block must not run")
    assert (target / "manifest.json").read_text() == "first"
    assert names(tmp_path) == ["bundle"]


def test_what_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    def write() -> None:
        with staged_folder(tmp_path / "bundle", force=False) as folder:
            (folder / "manifest.json").write_text("ours")
            bundle_at(tmp_path / "bundle", "theirs")

    with pytest.raises(OutputError, match="exists already"):
        write()
    assert (tmp_path / "bundle" / "manifest.json").read_text() == "theirs"
    assert names(tmp_path) == ["bundle"]


def killed(tmp_path: Path, program: str) -> None:
    """Run a program that kills itself."""
    lines = "import os, signal\nfrom pathlib import Path\nfrom h2o_export import staging\n" + program
    done = subprocess.run([sys.executable, "-c", lines], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL


def test_what_a_killed_one_left_is_removed(tmp_path: Path) -> None:
    killed(
        tmp_path,
        "with staging.staged_folder(Path('bundle'), False) as folder:\n"
        "    (folder / 'half').mkdir()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)",
    )
    assert names(tmp_path) == [".bundle.partial"]
    with staged_folder(tmp_path / "bundle", force=False) as folder:
        assert names(folder) == []
        (folder / "manifest.json").write_text("new")
    assert names(tmp_path) == ["bundle"]
    assert names(tmp_path / "bundle") == ["manifest.json"]


def test_what_was_being_replaced_is_put_back(tmp_path: Path) -> None:
    bundle_at(tmp_path / "bundle", "the only copy")
    killed(
        tmp_path,
        "rename, calls = os.replace, []\n"
        "def replace(*args):\n"
        "    if calls: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    calls.append(rename(*args))\n"
        "os.replace = replace\n"
        "with staging.staged_folder(Path('bundle'), True): pass",
    )
    assert not (tmp_path / "bundle").exists()
    with pytest.raises(OutputError, match="exists already"), staged_folder(tmp_path / "bundle", force=False):
        pytest.fail("the block must not run")
    assert (tmp_path / "bundle" / "manifest.json").read_text() == "the only copy"
    assert names(tmp_path) == ["bundle"]
