"""Commands in processes forked from one that has loaded their libraries, so that a test waits for no import.

Arguments, streams, exit codes and signals are those of `python -m h2o_cli.NAME`. But h2o-bench does not measure the
machine, which takes it seconds before and after every measurement: it gets RATES.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
COMMANDS = ("build", "export", "compare", "serve", "run.command", "bench.command", "eval.command")
LIBRARIES = ("onnx", "onnxruntime", "onnxscript", "safetensors.torch", "tokenizers", "jinja2", "gguf")
MODULES = ("h2o_export.checkpoints", "h2o_export.dense.graphs", "h2o_runtime.backends.onnxruntime")
RATES: dict[str, Any] = {"flops": 1e11, "flops_by": "tests", "bandwidth": 1e10, "bandwidth_by": "tests"}
SERVE = "from tests.cli.forked import serve; serve({})"


class Forked:
    """The process that is forked, started when first asked. One command at a time."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, name: str, words: list[str | bytes], given: bytes | None, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """`python -m h2o_cli.NAME WORDS` with `given` in a pipe as its standard input, or none."""
        if self._process is None:
            self._start()
        command = [name, *map(os.fsdecode, words)]
        with (
            tempfile.TemporaryFile() as request,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            request.write(json.dumps(command).encode())
            request.flush()
            source = _pipe(given) if given is not None else os.open(os.devnull, os.O_RDONLY)
            socket.send_fds(self._socket, [b"."], [request.fileno(), source, out.fileno(), err.fileno()])
            os.close(source)
            process = self._number()
            if not select.select([self._socket], [], [], timeout)[0]:
                os.kill(process, signal.SIGKILL)
                self._number()
                raise subprocess.TimeoutExpired(command, timeout, _content(out), _content(err))
            code = os.waitstatus_to_exitcode(self._number())
            return subprocess.CompletedProcess(command, code, _content(out), _content(err))

    def close(self) -> None:
        if self._process is not None:
            self._socket.close()
            self._process.wait()

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVE.format(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def _number(self) -> int:
        return int.from_bytes(self._socket.recv(8, socket.MSG_WAITALL), "little")


def serve(descriptor: int) -> None:
    """In the process that is forked: run what the socket brings, until it is closed. Returns in no child."""
    _load()
    with socket.socket(fileno=descriptor) as asked:
        while True:
            message, files, _, _ = socket.recv_fds(asked, 1, 4)
            if not message:
                return
            process = os.fork()
            if process == 0:
                break
            for file in files:
                os.close(file)
            asked.sendall(process.to_bytes(8, "little"))
            asked.sendall(os.waitpid(process, 0)[1].to_bytes(8, "little"))
    for file, stream in zip(files[1:], (0, 1, 2), strict=True):
        os.dup2(file, stream)
        os.close(file)
    with open(files[0], "rb") as request:
        request.seek(0)
        name, *words = json.load(request)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [name, *words]
    runpy.run_module(f"h2o_cli.{name}", run_name="__main__", alter_sys=True)


def _load() -> None:
    for module in LIBRARIES + MODULES:
        with suppress(ImportError):
            importlib.import_module(module)
    for command in COMMANDS:
        importlib.import_module(f"h2o_cli.{command}")
        if "." not in command:  # runpy runs it, and warns where it is there already
            del sys.modules[f"h2o_cli.{command}"]
    _know_rates()
    status = Path("/proc/self/status").read_text()
    assert "\nThreads:\t1\n" in status, "a fork takes no threads along"
    gc.freeze()


def _know_rates() -> None:
    from h2o_cli.bench import command
    from h2o_cli.bench.floor import MachineRates

    mock.patch.object(command, "_rates", return_value=MachineRates(**RATES)).start()


def _pipe(content: bytes) -> int:
    """The end to read of a pipe that brings `content`."""
    source, target = os.pipe()

    def feed() -> None:
        with suppress(BrokenPipeError), open(target, "wb") as file:
            file.write(content)

    threading.Thread(target=feed, daemon=True).start()
    return source


def _content(file: tempfile._TemporaryFileWrapper[bytes]) -> bytes:
    file.seek(0)
    return file.read()
