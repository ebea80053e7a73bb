"""The progress of a command's stages: a bar, or lines in a log; and how messages write a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from h2o_cli.common import make_console


@contextmanager
def stages(first: str, steps: int, width: int, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """Yields a function to call at the start of each stage, with its name.

    first: the text before the first call. width: characters of the longest name. lines: where standard error is
    no terminal, write a line for each stage; else nothing is written there.
    """
    console = make_console(stderr=True)
    if lines and not console.is_terminal:
        yield _lines(console, steps)
        return
    columns = (
        TextColumn(f"{{task.description:<{width}}}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(first, total=steps)

        def stage(name: str) -> None:
            bar.update(task, description=name, advance=1)

        yield stage


def _lines(console: Console, steps: int) -> Callable[[str], None]:
    begin, numbers = time.monotonic(), count(1)

    def stage(name: str) -> None:
        passed = timedelta(seconds=int(time.monotonic() - begin))
        console.print(f"{passed} {next(numbers)} of {steps}: {name}", markup=False, soft_wrap=True)

    return stage


def in_words(seconds: float) -> str:
    """Rounded for a message."""
    for size, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
