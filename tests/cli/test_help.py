"""--help shows what most people need; --help-all shows every option once, in its group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata

import click
import pytest
from click.testing import CliRunner
from tests.cli.conftest import Start
from tests.forked import COMMANDS as MODULES
from tests.path_options import all_commands

from h2o_cli.bench.command import main as bench
from h2o_cli.build import main as build
from h2o_cli.compare import main as compare
from h2o_cli.effects import flag_of
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
    assert len(COMMANDS) == 4 + 1 + 3


@of_each_command
def test_every_option_is_shown_once_in_a_group(command: HelpfulCommand) -> None:
    shown = text(command, "--help-all")
    context = click.Context(command)
    options = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    records = [one.get_help_record(context) for one in options]
    assert sorted(shown_options(shown)) == sorted(record[0].split("  ")[0] for record in records if record)
    # How to get help, and of whole commands the version: all others have a group.
    assert set(shown_options(shown.partition("\nHelp:\n")[2])) - {"--version"} == {"--help-all", "-h, --help"}


@of_each_command
def test_help_is_short_and_says_where_the_rest_is(command: HelpfulCommand) -> None:
    shown = text(command, "--help")
    assert len(shown.splitlines()) <= MOST_LINES
    first, every = (shown_options(text(command, flag)) for flag in ("--help", "--help-all"))
    assert len(first) == len(command.first) + 2
    assert f"--help-all shows {len(every) - len(first)} more: " in shown
    assert text(command, "-h") == shown


def count(command: click.Command) -> int:
    return sum(isinstance(one, click.Option) for one in command.get_params(click.Context(command)))


def test_options_are_few() -> None:
    """A policy, a cache and other groups of settings are one option each; --help counts as none."""
    assert count(run) <= 40
    assert count(serve) <= 50
    assert all(count(one) <= 45 for one in COMMANDS if one not in (run, serve))
    flags = {
        flag_of(option)
        for command in all_commands().values()
        for option in command.params
        if isinstance(option, click.Option)
    }
    assert len(flags) <= 90


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--prefill", "help"), ["h2o score=query", "heavy=448", "--prefill guarded is h2o", "minference"]),
        (("--prefill", "help full"), ["batch_size=4096"]),
        (("--decode", "help quest"), ["budget=1024", "heads=query|kv"]),
        (("--cache", "help"), ["paged", "rows=model|float16|int8", "evicting"]),
    ],
)
def test_help_of_an_option_that_takes_a_policy(flags: tuple[str, ...], told: list[str]) -> None:
    done = CliRunner().invoke(run, flags)
    assert done.exit_code == 0
    assert all(one in done.output for one in told)
    assert ("minference" in done.output) is (flags == ("--prefill", "help"))


@pytest.mark.parametrize(
    "command", [run, serve, export, compare, evaluate, bench, build], ids=lambda one: one.callback.__module__
)
def test_every_command_tells_its_version(command: click.Command) -> None:
    done = CliRunner().invoke(command, ["--version"], prog_name="h2o-run")
    assert (done.exit_code, done.output) == (0, f"h2o-run {metadata.version('h2o-edge')}\n")


TEXTS = {"run": ["--prefill help", "--cache help"], "serve": ["--limits help", "--help-all"]}


@pytest.mark.parametrize("name", [module.partition(".")[0] for module in MODULES])
def test_texts_that_cannot_be_written_end_in_a_sentence(name: str, start_h2o: Start) -> None:
    for words in ("--help", "--version", *TEXTS.get(name, [])):
        with open("/dev/full", "wb") as full:
            process = start_h2o(name, *words.split(), stdout=full)
            told = process.communicate(timeout=100)[1]
        sentence = b"error: standard output: cannot be written: No space left on device\n"
        assert (words, process.returncode, told) == (words, 1, sentence)


def test_a_reader_that_leaves_ends_the_help_silently(start_h2o: Start) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed:
        process = start_h2o("run", "--help", stdout=closed)
        assert process.communicate(timeout=100)[1] == b""
