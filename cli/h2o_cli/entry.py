"""Entry points of the commands. Importing their modules takes half a second, during which Ctrl-C, SIGTERM and
SIGHUP end them silently.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from importlib import import_module
from types import FrameType


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
    os._exit(128 + number)  # as `Command.invoke` of h2o_cli.usage


run = partial(_start, "h2o_cli.run.command")
serve = partial(_start, "h2o_cli.serve")
export = partial(_start, "h2o_cli.export")
build = partial(_start, "h2o_cli.build")
compare = partial(_start, "h2o_cli.compare")
evaluate = partial(_start, "h2o_cli.eval.command")
bench = partial(_start, "h2o_cli.bench.command")
