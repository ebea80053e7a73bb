"""A progress bar of a command's stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from h2o_cli.common import make_console


@contextmanager
def stages(first: str, steps: int, width: int) -> Iterator[Callable[[str], None]]:
    """On a terminal only. Yields a function to call at the start of each stage, with its name.

    first: the text before the first call. width: characters of the longest name.
    """
    console = make_console(stderr=True)
    columns = (TextColumn(f"{{task.description:<{width}}}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(first, total=steps)

        def stage(name: str) -> None:
            bar.update(task, description=name, advance=1)

        yield stage
