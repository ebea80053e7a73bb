"""--help shows what most people need; --help-all shows every option once, in its group."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from h2o_cli.bench.command import main as bench
from h2o_cli.compare import main as compare
from h2o_cli.eval.command import main as evaluate
from h2o_cli.export import main as export
from h2o_cli.help import HelpfulCommand
from h2o_cli.run.command import main as run
from h2o_cli.serve import main as serve

MOST_LINES = 45


def helpful(command: click.Command) -> Iterator[HelpfulCommand]:
    if isinstance(command, HelpfulCommand):
        yield command
    if isinstance(command, click.Group):
        for one in command.commands.values():
            yield from helpful(one)


COMMANDS = [one for command in (run, serve, export, compare, evaluate, bench) for one in helpful(command)]
of_each_command = pytest.mark.parametrize(
    "command", COMMANDS, ids=lambda one: f"{one.callback.__module__}.{one.name}"
)


def text(command: click.Command, flag: str) -> str:
    done = CliRunner().invoke(command, [flag], terminal_width=80)
    assert done.exit_code == 0
    return done.output


def shown_options(shown: str) -> list[str]:
    """How each option's line in a help text begins, in order."""
    return [line.split("  ")[1] for line in shown.splitlines() if line.startswith("  -")]


def test_all_commands_that_measure_or_run_are_here() -> None:
    assert len(COMMANDS) == 4 + 2 + 3


@of_each_command
def test_every_option_is_shown_once_in_a_group(command: HelpfulCommand) -> None:
    shown = text(command, "--help-all")
    context = click.Context(command)
    options = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    records = [one.get_help_record(context) for one in options]
    assert sorted(shown_options(shown)) == sorted(record[0].split("  ")[0] for record in records if record)
    assert (
        len(shown_options(shown.partition("\nHelp:\n")[2])) == 2
    )  # how to get help: all others have a group


@of_each_command
def test_help_is_short_and_says_where_the_rest_is(command: HelpfulCommand) -> None:
    shown = text(command, "--help")
    assert len(shown.splitlines()) <= MOST_LINES
    first, every = (shown_options(text(command, flag)) for flag in ("--help", "--help-all"))
    assert len(first) == len(command.first) + 2
    assert f"--help-all shows {len(every) - len(first)} more: " in shown
    assert text(command, "-h") == shown


@pytest.mark.parametrize(
    "told",
    [
        "of the sparse pattern. [--prefill h2o or minference] --h2o-local",  # the default is the bundle's
        "when the process ends. [--cache offload] --cache-tokens",  # no default
        "a power of two. [--cache paged; default: 16]",
        "distances that are powers of two. [--decode subquadratic; default: on]",
    ],
)
def test_help_names_the_choice_that_an_option_belongs_to_and_its_default(told: str) -> None:
    assert told in " ".join(text(run, "--help-all").split())
