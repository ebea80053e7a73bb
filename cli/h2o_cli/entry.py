"""Entry points of the commands. Importing their modules takes half a second, during which Ctrl-C ends them
silently.
"""

from __future__ import annotations

import signal
from importlib import import_module


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
    python_handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if python_handles:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    main = import_module(module).main
    if python_handles:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
