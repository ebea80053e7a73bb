"""Shared by all commands: exit codes, errors without tracebacks, terminal or machine output."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import re
import signal
import sys
from enum import IntEnum
from io import StringIO
from typing import Any, NoReturn

import click
from rich.console import Console, RenderableType
from rich.logging import RichHandler

from h2o_cli.effects import flag_of
from h2o_cli.help import Command, Group, grouped
from h2o_cli.settings_text import SettingsText
from h2o_cli.stopping import Stop
from h2o_cli.streams import abandon, write
from h2o_runtime.errors import (
    Cancelled,
    ConfigError,
    H2OError,
    OutOfMemoryError,
    OutputError,
    short_of_memory,
)
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


class Exit(IntEnum):
    """Exit codes of every command; after signal N it is 128 + N, as shells report it."""

    GOOD = 0
    ERROR = 1
    USAGE = 2
    TOLERANCE = 3  # everything ran, and a measured error was too large


def guarded(function: Command) -> Command:
    """Turn errors that a user can cause into one sentence on stderr and the right exit code.

    Anything else is our defect and keeps its traceback. SIGTERM and SIGHUP unwind like Ctrl-C, so that half-written
    folders are removed.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with Stop() as stop:
            if context := click.get_current_context(silent=True):
                context.obj = stop
            try:
                return function(*args, **kwargs)
            except (Cancelled, KeyboardInterrupt):
                _stopped(stop)
            except Exception as error:
                if stop.came():  # an interrupted import of a native library becomes an ImportError
                    _stopped(stop)
                _tell(error)

    return wrapper  # type: ignore[return-value]


def _tell(error: Exception) -> NoReturn:
    """Report the error and exit, or raise what click reports: a wrong usage. A defect of ours is raised again."""
    match error:
        case ConfigError():
            raise click.UsageError(in_flags(error)) from error
        case H2OError():
            _fail(error)
        case BrokenPipeError():
            # The reader of our output closed it (h2o-run … | head): not an error, and there is nobody to
            # report to.
            abandon(sys.stdout)
            abandon(sys.stderr)
            sys.exit(Exit.GOOD)
        case OSError():
            # For example, a path too long, no permission, a full disk: the system's error, not our defect.
            where = f"{error.filename}: " if error.filename else ""
            _fail(OutputError(f"{where}{error.strerror or error}"))
        case _ if short_of_memory(error):
            _fail(OutOfMemoryError("this command gets no more"))
    raise error


def _stopped(stop: Stop) -> NoReturn:
    click.echo("stopped", err=True)
    sys.exit(128 + (stop.number or signal.SIGINT))


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


def show(*renderables: RenderableType) -> None:
    """Tables and sentences to stdout. Raises OutputError when it cannot be written."""
    screen = make_console()
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = screen.width if on_terminal else 150  # a log has no width to wrap at
    text = StringIO()  # rich would end with a traceback on a stream that cannot be written
    console = Console(file=text, force_terminal=screen.is_terminal, width=width, highlight=False)
    for renderable in renderables:
        console.print(renderable)
    write(text.getvalue())


def verbose_option(command: Command) -> Command:
    verbose = click.option("-v", "--verbose", count=True, help="Show more messages; -vv shows all.")
    return grouped(Group.OUTPUT, verbose)(command)


def json_option(command: Command) -> Command:
    as_json = click.option(
        "--json", "as_json", is_flag=True, help="Write one JSON document to standard output."
    )
    return grouped(Group.OUTPUT, as_json)(command)


def threads_option(command: Command) -> Command:
    threads = click.option(
        "-t",
        "--threads",
        type=click.IntRange(min=1),
        callback=_checked_threads,
        help="CPU threads.  [default: all cores of this process]",
    )
    return grouped(Group.MACHINE, threads)(command)


def _checked_threads(context: click.Context, option: click.Parameter, threads: int | None) -> int | None:
    try:
        check_threads(threads)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return threads


def _finite(value: Any) -> Any:
    """`value` with None for infinities and NaN, at any depth of lists and objects."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fail(error: Exception) -> NoReturn:
    click.echo(f"error: {in_flags(error)}", err=True)
    sys.exit(Exit.ERROR)


def in_flags(error: Exception) -> str:
    """The message with this command's flags in place of the library's arguments.

    The library writes arguments in backquotes, `context` or `decode=full`, and begins with the wrong
    field. A name without a flag in this command stays as it is; a setting follows its option's flag.
    """
    context = click.get_current_context(silent=True)
    options = (
        [param for param in context.command.params if isinstance(param, click.Option)] if context else []
    )
    settings = {
        name: f"{flag_of(option)} {name}"
        for option in options
        if isinstance(option.type, SettingsText)
        for name in option.type.options
    }
    flags = settings | {str(option.name): flag_of(option) for option in options}

    def flag(found: re.Match[str]) -> str:
        if found[1] not in flags:
            return found[0]
        between = "=" if flags[found[1]] == settings.get(found[1]) else " "
        return f"{flags[found[1]]}{between}{found[2]}" if found[2] else flags[found[1]]

    message, field = str(error), getattr(error, "field", "")
    if field and re.match(rf"{re.escape(field)}\b", message):
        message = flags.get(field, field) + message[len(field) :]
    return re.sub(r"`([a-z_]+)(?:=([\w.-]+))?`", flag, message)
