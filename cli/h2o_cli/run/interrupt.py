"""Ctrl-C as a request that running work polls, instead of an exception at any point."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether Ctrl-C was pressed; for `Watch.cancelled`.

    The first Ctrl-C lets the work end between two steps, so that the output so far can be shown and the cache
    stays valid. The second one raises KeyboardInterrupt, as usual.
    """
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # started as a background job of a script: Ctrl-C is not for us
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
