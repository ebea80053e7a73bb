"""Commands as their users run them: in processes of their own."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from tests.cli import exports
from tests.forked import ROOT, Process, commands

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
Start = Callable[..., Any]  # subprocess.Popen[bytes], or a forked Process with the same methods


def _command(name: str, args: tuple[object, ...]) -> list[str | bytes]:
    return [sys.executable, "-m", f"h2o_cli.{name}", *_words(args)]


def _words(args: tuple[object, ...]) -> list[str | bytes]:
    return [arg if isinstance(arg, bytes) else str(arg) for arg in args]


def _take_signals() -> None:
    """A shell that runs the tests in its background makes all its children deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="session")
def h2o() -> Run:
    """`h2o("run", bundle, "-p", "text")` runs h2o-run to its end; `input` is bytes for standard input.

    With options of subprocess.run, such as `env`, it is a fresh process, else one that need not load libraries, and
    that runs `code` first.
    """

    def run(
        name: str,
        *args: object,
        timeout: float = 300,
        input: bytes | None = None,
        code: str = "",
        **options: Any,
    ) -> subprocess.CompletedProcess[bytes]:
        if not options:
            return commands(name).run(name, _words(args), input, timeout, code)
        source = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        command, options = _command(name, args), source | options
        return subprocess.run(command, capture_output=True, cwd=ROOT, timeout=timeout, check=False, **options)

    return run


@pytest.fixture
def start_h2o() -> Iterator[Start]:
    """`start_h2o("run", …)` starts a command with pipes as its output, and kills it at the end if it still runs.

    `stdout` may be a file, and all streams the file `terminal`. With other options of subprocess.Popen it is a
    fresh process, else one that need not load libraries, and that runs `code` first.
    """
    started: list[subprocess.Popen[bytes] | Process] = []

    def start(
        name: str, *args: object, stdout: Any = None, terminal: int = -1, code: str = "", **options: Any
    ) -> subprocess.Popen[bytes] | Process:
        if options:
            pipes: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE if stdout is None else stdout,
                "stderr": subprocess.PIPE,
                "preexec_fn": _take_signals,
            }
            started.append(subprocess.Popen(_command(name, args), cwd=ROOT, **(pipes | options)))
        elif terminal >= 0:
            started.append(commands(name).start(name, _words(args), terminal, terminal, terminal, code))
        else:
            started.append(commands(name).start_with_pipes(name, _words(args), stdout, code))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def read_until(stream: Any, pattern: bytes) -> re.Match[bytes]:
    """Read until the pattern has come → where it was found, in all that was read."""
    seen = b""
    while not (found := re.search(pattern, seen)):
        assert select.select([stream], [], [], 300)[0], f"waited for {pattern!r}, saw {seen!r}"
        data = os.read(stream.fileno(), 4096)
        assert data, f"waited for {pattern!r}, saw {seen!r} and the end"
        seen += data
    return found


def work_for(process: subprocess.Popen[bytes] | Process, seconds: float) -> None:
    """Until it has used so much processor time from now on, or has ended; a busy machine takes it longer."""
    used = psutil.Process(process.pid)
    with suppress(psutil.NoSuchProcess):
        end = sum(used.cpu_times()[:2]) + seconds
        while sum(used.cpu_times()[:2]) < end and process.poll() is None:
            time.sleep(0.02)


@pytest.fixture
def bundle_copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A bundle whose files a test may change."""
    return shutil.copytree(tiny_bundle, tmp_path / "bundle")


@pytest.fixture
def export_here() -> Callable[..., Any]:
    """`export_here(checkpoint, "-o", …)` runs h2o-export in this process, where a process adds nothing.

    One of its own would load PyTorch once more. → click's result.
    """
    return partial(_here, "export")


@pytest.fixture
def compare_here() -> Callable[..., Any]:
    """The same for h2o-compare."""
    return partial(_here, "compare")


def _here(name: str, *args: object) -> Any:
    return CliRunner().invoke(import_module(f"h2o_cli.{name}").main, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def checkpoint(shared_folder: Path) -> Path:
    """What tests of h2o-export export."""
    from tests import bundles  # loads PyTorch

    return bundles.named(shared_folder, exports.NAME)[0]


@pytest.fixture
def whole_bundle(shared_folder: Path, tmp_path: Path) -> Path:
    """A sound bundle that a test may have replaced."""
    from tests import bundles  # loads PyTorch

    return shutil.copytree(bundles.named(shared_folder, exports.NAME)[1], tmp_path / "out" / "bundle")
