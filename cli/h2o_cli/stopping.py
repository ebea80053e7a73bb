"""How a command ends before its time: by Ctrl-C, by `kill`, or because its terminal was closed."""

from __future__ import annotations

import _thread
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import click

from h2o_cli.streams import abandon
from h2o_runtime.errors import Cancelled
from h2o_runtime.process import STOPPING

Input = TypeVar("Input")


class Stop:
    """SIGINT, SIGTERM and SIGHUP, while it is open. Those that are ignored stay so, as SIGHUP under nohup.

    number  the first of them that came

    They raise KeyboardInterrupt; where work must end in order, the first one is only noted. After it SIGHUP does
    nothing: a terminal that is closed sends it several times.

    An exception in a destructor or a garbage collector callback is lost; Python only reports it. The signal
    is then sent again, a moment later.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._noted = False
        self._before: dict[int, Any] = {}

    @staticmethod
    def of_command() -> Stop:
        """That of the command which runs."""
        stop = click.get_current_context().find_object(Stop)
        assert stop is not None, "usage.Command has one"
        return stop

    def __enter__(self) -> Stop:
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        self._mention = sys.unraisablehook
        sys.unraisablehook = self._unraisable
        return self

    def __exit__(self, *_: object) -> None:
        sys.unraisablehook = self._mention
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def came(self) -> bool:
        """For `Watch.cancelled`."""
        return self.number is not None

    def check(self) -> None:
        """Raises Cancelled after a signal."""
        if self.came():
            raise Cancelled("stopped by a signal")

    def forget_ctrl_c(self) -> bool:
        """On a terminal it ends an answer or a line, and no more → whether it was the signal."""
        if self.number != signal.SIGINT:
            return False
        self.number = None
        return True

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Inside, work polls `came` and ends between two steps: then its session can be saved."""
        self._noted = True
        try:
            yield
        finally:
            self._noted = False

    def waited(self, read: Callable[[], Input]) -> Input:
        """What `read` gives, inside `noted`. Nothing is at work, so a signal ends the wait. Raises Cancelled."""
        try:
            self._noted = False
            self.check()
            return read()
        except KeyboardInterrupt:
            raise Cancelled("stopped while waiting for input") from None
        finally:  # calls nothing: a signal comes before or after
            self._noted = True

    def _take(self, number: int, frame: FrameType | None) -> None:
        first = self.number is None
        if number == signal.SIGHUP:
            _leave_terminal()
            if not first:
                return
        self.number = self.number or number
        if not (first and self._noted):
            raise KeyboardInterrupt

    def _unraisable(self, lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            self._mention(lost)
            return
        again = threading.Timer(0.02, _thread.interrupt_main, [signal.SIGTERM])
        again.daemon = True
        again.start()


def _leave_terminal() -> None:
    """Output to a terminal that is closed would be an error, after which nothing is saved."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
            abandon(stream)
