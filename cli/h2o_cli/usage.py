"""Commands whose errors are sentences: of usage, of what a user can cause, and of an interrupt."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import IO, Any, NoReturn

import click

from h2o_cli.effects import check_needs, check_once, flag_of
from h2o_cli.other_tools import refuse_flags_of_others
from h2o_cli.settings_text import SettingsText
from h2o_cli.stopping import Stop
from h2o_cli.streams import abandon, writing
from h2o_runtime.errors import (
    Cancelled,
    ConfigError,
    H2OError,
    OutOfMemoryError,
    OutputError,
    short_of_memory,
)


class Failure(click.ClickException):
    """An error before a command's own code runs, shown as those that come later. The exit code is click's: 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.format_message()}", file=file, err=True)


class Misuse(click.UsageError):
    """Shown as a line with the error, and a line with the command's --help. The exit code is click's: 2."""

    def show(self, file: IO[Any] | None = None) -> None:
        message = re.sub(r"\s*\n\s*", " ", self.format_message())  # click lists choices in lines
        click.echo(f"error: {message}", file=file, err=True)
        if self.ctx is not None:
            flag = max(self.ctx.command.get_help_option_names(self.ctx), key=len)
            click.echo(f"help: {self.ctx.command_path} {flag}", file=file, err=True)


class Exit(IntEnum):
    """Exit codes of every command; after signal N it is 128 + N, as shells report it."""

    GOOD = 0
    ERROR = 1
    USAGE = 2
    TOLERANCE = 3  # everything ran, and a measured error was too large


class _Told:
    """Raises Misuse for every click.UsageError. Texts that options print, such as --help, may raise Failure."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        with _as_ours(tuple(args)), writing():
            context: click.Context = super().make_context(info_name, args, *more, **extra)  # type: ignore[misc]
            return context


class Command(_Told, click.Command):
    """A command that refuses an option without effect, and whose errors are sentences."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)  # click takes from `args` what it has parsed
        refuse_flags_of_others(self, ctx, words)
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # click's own suggestions are the most similar ones, which may leave out what the word begins.
            begun = [
                flag for option in self.params for flag in option.opts if flag.startswith(error.option_name)
            ]
            if not begun:
                raise
            raise click.NoSuchOption(error.option_name, possibilities=begun, ctx=error.ctx) from None
        if not ctx.resilient_parsing:
            check_once(self, ctx, words)
            check_needs(self, ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Turn errors that a user can cause into one sentence on stderr and the right exit code.

        Anything else is our defect and keeps its traceback. SIGTERM and SIGHUP unwind like Ctrl-C, so that
        half-written folders are removed.
        """
        with _as_ours(), Stop() as ctx.obj:
            try:
                return super().invoke(ctx)
            except (Cancelled, KeyboardInterrupt):
                _stopped(ctx.obj)
            except Exception as error:
                if ctx.obj.came():  # an interrupted import of a native library becomes an ImportError
                    _stopped(ctx.obj)
                _tell(error, ctx)


class Group(_Told, click.Group):
    """A command of subcommands, each a `Command`."""

    def invoke(self, ctx: click.Context) -> Any:
        with _as_ours():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        first = args[0]
        if first not in self.commands and Path(first).is_dir():
            likely = next(iter(self.commands))
            ctx.fail(
                f"{first} is a folder: a command comes before it, such as {ctx.command_path} {likely} {first}"
            )
        return super().resolve_command(ctx, args)


@contextmanager
def _as_ours(words: tuple[str, ...] = ()) -> Iterator[None]:
    """words: those of the user."""
    try:
        yield
    except OutputError as error:
        raise Failure(str(error)) from error
    except click.UsageError as error:
        if type(error).show is not click.UsageError.show:  # the whole help, where a group is given no word
            raise
        raise Misuse(_as_typed(error.format_message(), words), error.ctx) from error


def _as_typed(message: str, words: tuple[str, ...]) -> str:
    """With the user's backslashes, which click doubles."""
    for word in words:
        value = word.partition("=")[2] if word.startswith("--") else word
        if "\\" in value:
            message = message.replace(value.replace("\\", "\\\\"), value)
    return message


def _tell(error: Exception, ctx: click.Context) -> NoReturn:
    """Report the error and exit, or raise what click reports: a wrong usage. A defect of ours is raised again."""
    match error:
        case ConfigError():
            raise click.UsageError(in_flags(error), ctx) from error
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
