"""Help in two lengths: `--help` shows the most used options, `--help-all` all of them, in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, TypeVar

import click

from h2o_cli import usage
from h2o_cli.effects import parameters

version_option = click.version_option(package_name="h2o-edge", message="%(prog)s %(version)s")
Command = TypeVar("Command", bound=Callable[..., Any])
_ALL = "h2o_cli.help_all"  # key in a context's meta: show all options


class Group(Enum):
    """The topic of an option, as a heading. Groups are shown in this order."""

    PROMPT = "Prompt"
    ANSWER = "Answer"
    SERVER = "Server"
    WEIGHTS = "Weights"
    COMPARISON = "Comparison"
    MEASUREMENT = "Measurement"
    PREFILL = "Sparse prefill"
    DECODE = "Decode"
    CACHE = "Cache"
    MACHINE = "Machine"
    OUTPUT = "Output"
    OTHER = "Help"


def grouped(group: Group, *options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """All of `options`, which are decorators, as one decorator; their options appear in `group` unless they
    have their own.
    """

    def add(command: Command) -> Command:
        before = list(parameters(command))
        for option in reversed(options):
            command = option(command)
        for parameter in parameters(command):
            if parameter not in before and not hasattr(parameter, "help_group"):
                parameter.help_group = group
        return command

    return add


class HelpfulCommand(usage.Command):
    """A command whose `--help` shows the options in `first`, and `--help-all` every one in its group."""

    def __init__(self, *args: Any, first: tuple[str, ...], **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        super().__init__(*args, **kwargs)
        self.first = first
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show every option, in groups.",
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.meta.get(_ALL):
            self._format_groups(ctx, formatter)
        else:
            self._format_first(ctx, formatter)

    def _format_groups(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group in Group:
            records = [
                record
                for option in self._options(ctx)
                if _group(option) is group
                for record in _record(option, ctx)
            ]
            if records:
                with formatter.section(group.value):
                    formatter.write_dl(records)

    def _format_first(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options, for_help = {option.name: option for option in self._options(ctx)}, self.get_help_option(ctx)
        shown = [options[name] for name in (*self.first, "help_all")] + ([for_help] if for_help else [])
        with formatter.section("Options"):
            formatter.write_dl([record for option in shown for record in _record(option, ctx)])
        hidden = [option for option in self._options(ctx) if option not in shown]
        titles = [group.value.lower() for group in Group if any(_group(option) is group for option in hidden)]
        formatter.write_paragraph()
        formatter.write_text(f"--help-all shows {len(hidden)} more: {', '.join(titles)}.")

    def _options(self, ctx: click.Context) -> Iterator[click.Parameter]:
        return (param for param in self.get_params(ctx) if isinstance(param, click.Option))


def _show_all(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def _group(option: Any) -> Group:
    group: Group = getattr(option, "help_group", Group.OTHER)
    return group


def _record(option: click.Parameter, ctx: click.Context) -> Iterator[tuple[str, str]]:
    record = option.get_help_record(ctx)
    if record is not None:
        yield record
