"""Processes that can be killed: they run what is foreign, and the operating system ends them at their limits.

Such a process runs the function `main` of a script, which gets `Limits` and the number of a socket's descriptor. It
imports nothing from the package, so that it starts fast and stays small; that is true of this file and of scripts.
"""

from __future__ import annotations

import contextlib
import json
import resource
import runpy
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Neither -m, which would import the whole runtime, nor the file's folder first on the path.
_BEGIN = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[3]); "
    f"runpy.run_path({__file__!r})['begin'](*sys.argv[1:3])"
)


class Killable:
    """One process. socket: our end of the connection. end: closes it, waits a moment, and kills the process."""

    def __init__(self, script: Path, *, quiet: bool, patience: float, **arguments: Any) -> None:
        """quiet: whether nobody sees what it writes. patience: seconds that it has to end by itself.
        arguments: further ones of `main`. Raises OSError.
        """
        self.socket, theirs = socket.socketpair()
        with theirs:
            told = json.dumps(arguments | {"descriptor": theirs.fileno()})
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", _BEGIN, str(script), told, json.dumps(sys.path)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL if quiet else None,
                    pass_fds=[theirs.fileno()],
                )
            except OSError:
                self.socket.close()
                raise
        self.end: Callable[[], object] = weakref.finalize(self, _end, self.socket, process, patience)


def _end(connection: socket.socket, process: subprocess.Popen[bytes], patience: float) -> None:
    connection.close()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Limits:
    """Of the process that has them: it ends silently where it takes more."""

    def memory(self, more: int) -> None:
        """more: bytes above what it has now."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # macOS has no such limit.
        with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + more
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def seconds(self, all: int) -> None:
        """all: seconds of processor time from the start on; whole numbers, as the operating system counts."""
        resource.setrlimit(resource.RLIMIT_CPU, (all, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def begin(script: str, arguments: str) -> None:
    """In the process: run the script."""
    # A service manager and a closed terminal signal all processes; the parent decides.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    runpy.run_path(script)["main"](Limits(), **json.loads(arguments))
