"""Entry points of the commands. Importing their modules takes half a second, during which Ctrl-C, SIGTERM and
SIGHUP end them silently.
"""

from __future__ import annotations

import os
import signal
from importlib import import_module
from types import FrameType


def run() -> None:
    _start("h2o_cli.run.command")


def serve() -> None:
    _start("h2o_cli.serve")


def export() -> None:
    _start("h2o_cli.export")


def build() -> None:
    _start("h2o_cli.build")


def compare() -> None:
    _start("h2o_cli.compare")


def evaluate() -> None:
    _start("h2o_cli.eval.command")


def bench() -> None:
    _start("h2o_cli.bench.command")


def _start(module: str) -> None:
    """Until the command's own code takes signals, nothing is begun that must be undone, and nothing is printed.

    An exception instead of an exit would be lost in imports of native libraries, or shown with a traceback. By
    itself SIGTERM does not end the first process of a container.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # as h2o_runtime.process.STOPPING
        if signal.getsignal(number) is not signal.SIG_IGN:  # as in a script's background job, or under nohup
            signal.signal(number, _end)
    import_module(module).main()


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)  # as `guarded` of h2o_cli.common
