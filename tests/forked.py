"""Commands in processes forked from one that has loaded their libraries, so that a test waits for no import.

Arguments, streams, exit codes and signals are those of `python -m h2o_cli.NAME`. But h2o-bench does not measure the
machine, which takes it seconds before and after every measurement: it gets RATES. And a command that ends does not
take its modules apart.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import hashlib
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from unittest import mock

ROOT = Path(__file__).parents[1]
COMMANDS = ("build", "export", "compare", "serve", "run.command", "bench.command", "eval.command")
LIBRARIES = (
    "h2o_runtime.providers.native",
    "h2o_runtime.backends.onnxruntime",
    "h2o_runtime.devices.cuda",  # a command loads the next five when it opens its model or its server
    "h2o_runtime.providers.cuda",
    "h2o_server.http.logs",
    "onnxruntime",
    "pydantic.v1",
    "h2o_server.serve",
    "onnx.inliner",
    "tokenizers",
)
EXPORTERS = ("export", "compare")
THEIR_LIBRARIES = (
    "gguf",
    "h2o_export.checkpoints",
    "h2o_export.dense.graphs",
    "onnxscript",
    "polygraphy.backend.onnxrt",
    "safetensors.torch",
    "transformers.models.llama.modeling_llama",
)
RATES: dict[str, Any] = {"flops": 1e11, "flops_by": "tests", "bandwidth": 1e10, "bandwidth_by": "tests"}
SERVE = "from tests.forked import serve; serve({}, {!r}, {})"


class Process:
    """A forked command, with the methods of subprocess.Popen."""

    def __init__(self, keeper: socket.socket) -> None:
        self._keeper = keeper
        self.pid = self._number()
        self.returncode: int | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._keeper], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(self._number())
            self._keeper.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """What comes through the two pipes until the command has ended."""
        with ThreadPoolExecutor(2) as readers:
            contents = [readers.submit(_rest, stream) for stream in (self.stdout, self.stderr)]
            try:
                out, err = [content.result(timeout) for content in contents]
            except TimeoutError:
                self.kill()
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
        self.wait(timeout)
        return out, err

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        content = self._keeper.recv(8, socket.MSG_WAITALL)
        assert len(content) == 8, (
            "the process that is forked, or one that was, has failed: see standard error"
        )
        return int.from_bytes(content, "little")


class Forked:
    """The process that is forked, started when a worker of pytest-xdist first asks at `place`, a socket's file."""

    def __init__(self, place: str, environment: dict[str, str], *libraries: str) -> None:
        self._place = place
        self._environment = environment
        self._libraries = libraries
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, name: str, words: list[str | bytes], given: bytes | None, timeout: float, code: str = ""
    ) -> subprocess.CompletedProcess[bytes]:
        """`python -m h2o_cli.NAME WORDS` with `given` in a pipe as its standard input, or none; see `start`."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            source = _pipe(given) if given is not None else os.open(os.devnull, os.O_RDONLY)
            process = self.start(name, words, source, out.fileno(), err.fileno(), code)
            os.close(source)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise subprocess.TimeoutExpired(
                    [name, *words], timeout, _content(out), _content(err)
                ) from None
            return subprocess.CompletedProcess([name, *words], code, _content(out), _content(err))

    def start_with_pipes(
        self, name: str, words: list[str | bytes], to: IO[bytes] | None = None, code: str = ""
    ) -> Process:
        """`python -m h2o_cli.NAME WORDS` without input. Its output goes to `to`, or like its errors to a pipe."""
        err, to_err = os.pipe()
        out, to_out = os.pipe() if to is None else (None, os.dup(to.fileno()))
        with open(os.devnull, "rb") as nothing, open(to_out, "wb"), open(to_err, "wb"):
            process = self.start(name, words, nothing.fileno(), to_out, to_err, code)
        process.stdout = None if out is None else os.fdopen(out, "rb")
        process.stderr = os.fdopen(err, "rb")
        return process

    def start(
        self, name: str, words: list[str | bytes], source: int, out: int, err: int, code: str = ""
    ) -> Process:
        """`python -m h2o_cli.NAME WORDS` with these files as its streams, after `code` has run in it."""
        if self._socket is None:
            self._socket = self._connected()
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as request, theirs:
            request.write(json.dumps([code, name, *map(os.fsdecode, words)]).encode())
            request.flush()
            socket.send_fds(self._socket, [b"."], [theirs.fileno(), request.fileno(), source, out, err])
        return Process(ours)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.wait()  # until no other worker asks it

    def _connected(self) -> socket.socket:
        asked = socket.socket(socket.AF_UNIX)
        with open(f"{self._place}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError, ConnectionRefusedError):
                asked.connect(self._place)
                return asked
            Path(self._place).unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(self._place)
                listening.listen()
                self._process = subprocess.Popen(
                    [sys.executable, "-c", SERVE.format(listening.fileno(), self._place, self._libraries)],
                    pass_fds=[listening.fileno()],
                    cwd=ROOT,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            asked.connect(self._place)
        return asked


def commands(name: str, **environment: str) -> Forked:
    """What starts `h2o_cli.NAME`: one for all tests of a worker that need the same libraries and variables."""
    libraries = LIBRARIES + THEIR_LIBRARIES if name in EXPORTERS else LIBRARIES
    return _with_libraries(libraries, tuple(environment.items()))


@functools.cache
def _with_libraries(libraries: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> Forked:
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    key = hashlib.sha256(repr((session, libraries, environment)).encode()).hexdigest()[:16]
    place = os.path.join(tempfile.gettempdir(), f"h2o-forked-{key}")
    forked = Forked(place, {**os.environ, "HF_HUB_OFFLINE": "1", **dict(environment)}, *libraries)
    atexit.register(forked.close)
    return forked


def serve(descriptor: int, place: str, libraries: tuple[str, ...]) -> None:
    """In the process that is forked: start what the sockets bring, until all are closed. Returns in no child."""
    _load(libraries)
    asking = [socket.socket(fileno=descriptor)]
    while True:
        for one in select.select(asking, [], [])[0]:
            if one is asking[0]:
                asking.append(one.accept()[0])
                continue
            message, files, _, _ = socket.recv_fds(one, 1, 5)
            if not message:
                asking.remove(one)
                one.close()
                if len(asking) == 1:
                    for file in (place, f"{place}.lock"):  # so that who comes later starts another process
                        Path(file).unlink(missing_ok=True)
                    if not select.select(asking, [], [], 0)[0]:
                        return
            elif os.fork() == 0:
                for each in asking:
                    each.close()
                _keep(*files)
                return
            for file in files:
                os.close(file)
        with suppress(ChildProcessError):  # there is none yet, or no more
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _keep(told: int, request: int, *streams: int) -> None:
    """In a keeper: fork the command, and tell its number, then how it ended."""
    process = os.fork()
    with socket.socket(fileno=told) as keeper:
        if process != 0:
            for file in (request, *streams):
                os.close(file)
            with suppress(BrokenPipeError, ConnectionResetError):  # the tests have ended
                keeper.sendall(process.to_bytes(8, "little"))
                keeper.sendall(os.waitpid(process, 0)[1].to_bytes(8, "little"))
            os._exit(0)
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    with open(request, "rb") as words:
        words.seek(0)
        _run(*json.load(words))


def _run(code: str, name: str, *words: str) -> None:
    # The old ones have found out that their file has places, and a pipe has none.
    sys.stdout = os.fdopen(1, "w", -1, sys.stdout.encoding, sys.stdout.errors, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, sys.stderr.encoding, sys.stderr.errors, closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [name, *words]
    exec(compile(code, "<what the test changes>", "exec"), {"__name__": "changed"})
    try:
        runpy.run_module(f"h2o_cli.{name}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        # What Python does at its end but for the modules: to free them copies the memory that processes share.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code or 0)


def _load(libraries: tuple[str, ...]) -> None:
    for module in libraries:
        with suppress(ImportError):
            importlib.import_module(module)
    for command in COMMANDS:
        importlib.import_module(f"h2o_cli.{command}")
        if "." not in command:  # runpy runs it, and warns where it is there already
            del sys.modules[f"h2o_cli.{command}"]
    know_rates()
    if set(THEIR_LIBRARIES) <= set(libraries):
        share_traces()
    status = Path("/proc/self/status").read_text()
    assert "\nThreads:\t1\n" in status, "a fork takes no threads along"
    gc.freeze()


def share_traces() -> None:
    """Exports read what other processes have traced."""
    from tests import traces

    traces.share()
    gc.set_threshold(50_000, 20, 100)  # as tests/conftest.py says


def know_rates() -> None:
    from h2o_cli.bench import command
    from h2o_cli.bench.machine import MachineRates

    mock.patch.object(command, "_rates", return_value=MachineRates(**RATES)).start()


def _pipe(content: bytes) -> int:
    """The end to read of a pipe that brings `content`."""
    source, target = os.pipe()

    def feed() -> None:
        with suppress(BrokenPipeError), open(target, "wb") as file:
            file.write(content)

    threading.Thread(target=feed, daemon=True).start()
    return source


def _rest(stream: IO[bytes] | None) -> bytes:
    return b"" if stream is None or stream.closed else stream.read()


def _content(file: tempfile._TemporaryFileWrapper[bytes]) -> bytes:
    file.seek(0)
    return file.read()
