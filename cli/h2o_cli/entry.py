"""Entry points of the commands. Importing their modules takes half a second, during which Ctrl-C ends them
silently.
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
    """Until the command's own code takes SIGINT, nothing is begun that must be undone, and nothing is printed.

    An exception instead of an exit would be lost in imports of native libraries, or shown with a traceback.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # ignored in a script's background job
        signal.signal(signal.SIGINT, _end)
    import_module(module).main()


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)  # as h2o_cli.common.Exit.INTERRUPTED
