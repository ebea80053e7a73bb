"""Entry points: what happens before a command's own code runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomllib

from h2o_cli import entry

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
SCRIPTS: dict[str, str] = PROJECT["project"]["scripts"]

# The signal is held back until the command's module is imported: before that it is Python's own start.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
from h2o_cli import entry
print("here", flush=True)
import_module = entry.import_module
def importing(name):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    return import_module(name)
entry.import_module = importing
entry.run()
"""


def test_every_script_has_its_entry() -> None:
    for name, target in SCRIPTS.items():
        module, _, function = target.partition(":")
        assert module == entry.__name__, name
        assert callable(getattr(entry, function)), name


@pytest.mark.parametrize("after", [0, 0.1, 0.3])
def test_ctrl_c_during_imports_ends_without_a_traceback(after: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode in (0, 130, -signal.SIGINT)
    assert b"Traceback" not in told
