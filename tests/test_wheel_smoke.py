"""tools/wheel_smoke.py says in one sentence what a machine lacks, and fails when an answer is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools import wheel_smoke
from tools.wheels import BuildError


def qemu(folder: Path, says: str) -> str:
    program = folder / "qemu-aarch64"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return str(program)


def test_an_early_qemu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"7\.2\.22.*install qemu-user of Debian 13"):
        wheel_smoke.check_qemu(qemu(tmp_path, "qemu-aarch64 version 7.2.22 (Debian)"))
    wheel_smoke.check_qemu(qemu(tmp_path, "qemu-aarch64 version 10.0.13 (Debian)"))


def test_a_missing_qemu_is_told(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"qemu-none is not there: install qemu-user of Debian 13"):
        wheel_smoke.check_qemu(str(tmp_path / "qemu-none"))


def test_no_wheel_at_all() -> None:
    command = [sys.executable, "-m", "tools.wheel_smoke", "--bundle", "out/tiny-llama"]
    done = subprocess.run(command, cwd=wheel_smoke.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "there is no wheel for Python 3.11: make wheels\n")


def test_a_step_that_fails_or_answers_wrongly_fails(tmp_path: Path) -> None:
    right = wheel_smoke.Step("right", ["-c", "print('59317 59317')"], "59317", 2)
    wrong = wheel_smoke.Step("wrong", ["-c", "print('59317 69317')"], "59317", 2)
    broken = wheel_smoke.Step("broken", ["-c", "import sys; sys.exit('no such kernel')"])
    python = Path(sys.executable)
    wheel_smoke.smoke(python, [right], tmp_path)
    for step, says in ((wrong, "wrong does not answer 59317"), (broken, "no such kernel")):
        with pytest.raises(BuildError, match=says):
            wheel_smoke.smoke(python, [right, step], tmp_path)
