"""Errors of usage: a line that says what is wrong, and a line with the command that shows the help."""

from __future__ import annotations

from importlib import import_module

import pytest
from click.testing import CliRunner
from tests.cli.test_entry import SCRIPTS

from h2o_cli import entry


def _told(script: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """The exit code and the messages of an installed command, called with these words."""
    modules: list[str] = []
    monkeypatch.setattr(entry, "_start", modules.append)
    getattr(entry, SCRIPTS[script].partition(":")[2])()
    done = CliRunner().invoke(import_module(modules[0]).main, words, prog_name=script)
    return done.exit_code, done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_tells_wrong_usage_in_two_lines(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, told = _told(script, ["--flag-of-no-command"], monkeypatch)
    wrong, helps = told.splitlines()
    assert code == 2
    assert wrong.startswith("error: No such option '--flag-of-no-command'")
    assert helps in (f"help: {script} --help", f"help: {script} measure --help")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "h2o-bench prefil",
            "error: No such command 'prefil'. Did you mean 'prefill'?\nhelp: h2o-bench --help\n",
        ),
        (
            "h2o-bench /",
            "error: / is a folder: a command comes before it, such as h2o-bench prefill /\n"
            "help: h2o-bench --help\n",
        ),
        ("h2o-eval merge", "error: Missing argument 'FOLDERS...'.\nhelp: h2o-eval merge --help\n"),
        (
            "h2o-run a -c x",
            "error: Invalid value for '-c' / '--ctx-size': 'x' is not a valid integer range.\n"
            "help: h2o-run --help\n",
        ),
    ],
)
def test_the_command_that_was_meant_is_named(words: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script, *rest = words.split()
    assert _told(script, rest, monkeypatch) == (2, told)


def test_a_group_without_a_word_shows_its_help(monkeypatch: pytest.MonkeyPatch) -> None:
    code, told = _told("h2o-bench", [], monkeypatch)
    assert code == 2
    assert told.startswith("Usage: h2o-bench [OPTIONS] COMMAND")
