"""Errors of usage, in the shape of all other errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from h2o_cli.streams import writing
from h2o_runtime.errors import OutputError


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


class Command(click.Command):
    """A command or group that raises Misuse for every click.UsageError, those of its subcommands included.

    Texts that options print, such as --help, may raise Failure.
    """

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        with _as_ours(tuple(args)), writing():
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _as_ours():
            return super().invoke(ctx)


class Group(Command, click.Group):
    """`Command` for groups."""

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
