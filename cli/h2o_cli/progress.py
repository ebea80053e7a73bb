"""The progress of long work: a bar on a terminal, lines in a log; and how messages write a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from h2o_cli.common import make_console

EVERY = 10.0  # seconds between lines of a log
UNCHANGED = 60.0  # seconds after which a line comes again
LONG = 60.0  # seconds that are left, from which on they are told


@contextmanager
def stages(first: str, steps: int, width: int, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """Yields a function to call at the start of each stage, with its name.

    first: the text before the first call. width: characters of the longest name. lines: where standard error is
    no terminal, write a line for each stage; else lines as of `told_in_log`.
    """
    console = make_console(stderr=True)
    if not console.is_terminal:
        with _stages_in_log(console, first, steps, lines) as stage:
            yield stage
        return
    columns = (
        TextColumn(f"{{task.description:<{width}}}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=600) as bar:
        task = bar.add_task(first, total=steps)

        def stage(name: str) -> None:
            bar.update(task, description=name, advance=1)

        yield stage


@contextmanager
def told_in_log(state: Callable[[], str]) -> Iterator[None]:
    """For a standard error that is no terminal: a line about the work inside every ten seconds, of an unchanged
    state every minute. Short work has none.
    """
    console, begin, ended = make_console(stderr=True), time.monotonic(), threading.Event()
    told = ""

    def tell() -> None:
        nonlocal told
        last = begin
        while not ended.wait(EVERY):
            text, now = state(), time.monotonic()
            if text != told or now - last >= UNCHANGED:
                _line(console, begin, text)
                told, last = text, now

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if told and state() != told:
            _line(console, begin, state())


@contextmanager
def _stages_in_log(console: Console, first: str, steps: int, each: bool) -> Iterator[Callable[[str], None]]:
    """each: a line at the start of each stage."""
    begin, done, text = time.monotonic(), 0, first

    def stage(name: str) -> None:
        nonlocal done, text
        left = (time.monotonic() - begin) / max(done, 1) * (steps - done)
        done += 1
        text = f"{done} of {steps}: {name}"
        if done > 1 and left >= LONG:
            text += f", about {in_words(left)} left"
        if each:
            _line(console, begin, text)

    if each:
        yield stage
        return
    with told_in_log(lambda: text):
        yield stage


def _line(console: Console, begin: float, text: str) -> None:
    passed = timedelta(seconds=int(time.monotonic() - begin))
    console.print(f"{passed} {text}", markup=False, highlight=False, soft_wrap=True)


def in_words(seconds: float) -> str:
    """Rounded for a message."""
    for size, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
