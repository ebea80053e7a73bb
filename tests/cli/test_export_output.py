"""Where h2o-export writes to, and what it leaves there when it fails or is stopped."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run, Start
from tests.cli.exports import files

from h2o_export.staging import staged_folder
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.errors import OutputError

pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_an_existing_bundle_is_refused_and_replaced_by_force(
    h2o: Run, export_here: Callable[..., Any], checkpoint: Path, whole_bundle: Path
) -> None:
    (whole_bundle / "notes.txt").write_text("mine")
    before = files(whole_bundle)
    refused = export_here(checkpoint, "-o", whole_bundle, "--no-validate")
    assert refused.exit_code == 1
    assert refused.stderr == f"error: {whole_bundle}: exists already; choose another folder or add --force\n"
    assert files(whole_bundle) == before
    link = whole_bundle.parent / "link"
    link.symlink_to(whole_bundle)
    done = h2o("export", checkpoint, "-o", link, "--no-validate", "--force", "-ub", 2048, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["validation"] is None
    assert Manifest.read(whole_bundle).validation is None
    assert Manifest.read(whole_bundle).prefill.chunk_size == 2048
    assert not (whole_bundle / "notes.txt").exists()
    assert sorted(path.name for path in whole_bundle.parent.iterdir()) == ["bundle", "link"]
    assert link.is_symlink()


def test_a_replacement_that_fails_brings_the_old_folder_back(
    whole_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(whole_bundle)
    real = os.replace

    def fail(source: Any, target: Any) -> None:
        if Path(source).name.startswith(".bundle.") and Path(target) == whole_bundle:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, target)

    def replace() -> None:
        with staged_folder(whole_bundle, force=True) as folder:
            (folder / "manifest.json").write_text("{}")
            monkeypatch.setattr(os, "replace", fail)

    with pytest.raises(OutputError, match="Input/output error"):
        replace()
    assert files(whole_bundle) == before
    assert list(whole_bundle.parent.iterdir()) == [whole_bundle]


def test_a_disk_that_takes_no_more_leaves_nothing(start_h2o: Start, checkpoint: Path, tmp_path: Path) -> None:
    process = start_h2o("export", checkpoint, "-o", tmp_path / "bundle", "--no-validate")
    small = (400_000, 400_000)  # less than the embedding has, which is written after seconds
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, small)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (1, b"")
    assert err.decode() == f"error: {tmp_path / 'bundle'}: writing failed: File too large\n"
    assert list(tmp_path.iterdir()) == []


# How it stops


@pytest.mark.parametrize(
    ("number", "reached"), [(signal.SIGINT, "onnx/dense_00.onnx"), (signal.SIGTERM, "manifest.json")]
)
def test_an_interrupted_export_leaves_nothing(
    number: signal.Signals, reached: str, start_h2o: Start, checkpoint: Path, whole_bundle: Path
) -> None:
    folder, before = whole_bundle.parent, files(whole_bundle)
    process = start_h2o("export", checkpoint, "-o", whole_bundle, "--force")
    _wait_until(lambda: any(folder.glob(f".{whole_bundle.name}.*/{reached}")), process)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert (out, err) == (b"", b"stopped\n")
    # Where it comes while Python runs code made of a string, Python ends itself by the signal: the same to a shell.
    assert process.returncode in (128 + number, -number)
    assert list(folder.iterdir()) == [whole_bundle]
    assert files(whole_bundle) == before


def _wait_until(happened: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, "ended before it could be interrupted"
        assert time.monotonic() < end
        time.sleep(0.01)
