"""Ctrl-C as a wish that running work looks for, instead of an exception at any point of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Gives a function that tells whether Ctrl-C was pressed; for `Watch.cancelled`.

    The first one lets the work end between two of its steps, so that what there is can be shown and the cache
    stays sound. The second one is for whoever cannot wait: KeyboardInterrupt, as usual.
    """
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # started in the background of a script: Ctrl-C is not for us
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
