"""Shared by all commands: some options, messages, terminal or machine output."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from io import StringIO
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.logging import RichHandler

from h2o_cli.help import Group, grouped
from h2o_cli.streams import write
from h2o_runtime.errors import ConfigError
from h2o_runtime.process import check_threads
from h2o_runtime.text import decode_utf8


class NotNegative(click.FloatRange):
    """A number from 0 on. click's own range accepts "nan", a limit that is never reached."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number from 0 on.", param, ctx)
        return number


def start_logging(verbose: int) -> None:
    """Libraries log; commands decide what is shown: warnings, with -v information, with -vv all messages."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler: logging.Handler
    if sys.stderr.isatty():
        handler = RichHandler(console=make_console(stderr=True), show_path=False, show_time=verbose > 0)
        form = "%(message)s"
    else:  # a line a message, for whoever searches them
        handler = logging.StreamHandler()
        form = ("%(asctime)s " if verbose else "") + "%(levelname)-8s %(message)s"
    logging.basicConfig(level=level, format=form, handlers=[handler], force=True)
    for noisy in ("torch", "onnxscript", "onnx_ir", "transformers", "httpx", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(max(level, logging.ERROR))


def unstyled() -> bool:
    """Whether the user asks for no escape sequences, by NO_COLOR or a dumb terminal."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")


def make_console(stderr: bool = False) -> Console:
    """rich's console, which draws bars and colours only on a terminal."""
    return Console(stderr=stderr, force_terminal=False if unstyled() else None)


def argument_text(value: str, flag: str) -> str:
    """An argument as UTF-8, whatever the locale: Python encodes bytes that it cannot decode as surrogates.

    Raises InputError for bytes that are not UTF-8.
    """
    return decode_utf8(os.fsencode(value), flag)


def print_json(value: Any) -> None:
    """One JSON document on stdout; numbers keep full precision, and infinities and NaN become null."""
    write(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def show(*renderables: RenderableType, width: int = 150) -> None:
    """Tables and sentences to stdout. Raises OutputError when it cannot be written.

    width: where there is no terminal; a log has no width to wrap at
    """
    screen = make_console()
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    text = StringIO()  # rich would end with a traceback on a stream that cannot be written
    width = screen.width if on_terminal else width
    console = Console(file=text, force_terminal=screen.is_terminal, width=width, highlight=False)
    for renderable in renderables:
        console.print(renderable)
    write(text.getvalue())


def _checked_threads(context: click.Context, option: click.Parameter, threads: int | None) -> int | None:
    try:
        check_threads(threads)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return threads


verbose_option = grouped(
    Group.OUTPUT,
    click.option("-v", "--verbose", count=True, help="Show more messages; -vv shows all."),
)
json_option = grouped(
    Group.OUTPUT,
    click.option("--json", "as_json", is_flag=True, help="Write one JSON document to standard output."),
)
threads_option = grouped(
    Group.MACHINE,
    click.option(
        "-t",
        "--threads",
        type=click.IntRange(min=1),
        callback=_checked_threads,
        help="CPU threads.  [default: all cores of this process]",
    ),
)


def _finite(value: Any) -> Any:
    """`value` with None for infinities and NaN, at any depth of lists and objects."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
