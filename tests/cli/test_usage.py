"""Errors of usage: a line that says what is wrong, and a line with the command that shows the help."""

from __future__ import annotations

from importlib import import_module

import pytest
from click.testing import CliRunner
from tests.cli.test_entry import SCRIPTS

from h2o_cli import entry


def _told(script: str, words: list[str]) -> tuple[int, str]:
    """The exit code and the messages of an installed command, called with these words."""
    (module,) = getattr(entry, SCRIPTS[script].partition(":")[2]).args
    done = CliRunner().invoke(import_module(module).main, words, prog_name=script)
    return done.exit_code, done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_tells_wrong_usage_in_two_lines(script: str) -> None:
    code, told = _told(script, ["--flag-of-no-command"])
    wrong, helps = told.splitlines()
    assert code == 2
    assert wrong.startswith("error: No such option '--flag-of-no-command'")
    assert helps == f"help: {script} --help"


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
        (
            "h2o-run a -c x",
            "error: Invalid value for '-c' / '--ctx-size': 'x' is not a valid integer range.\n"
            "help: h2o-run --help\n",
        ),
        (
            "h2o-run --prompt-file C:\\Users\\me\\a.txt a",
            "error: Invalid value for '-f' / '--prompt-file': File 'C:\\Users\\me\\a.txt' does not exist.\n"
            "help: h2o-run --help\n",
        ),
        (
            "h2o-run --threads=1\\2 a",
            "error: Invalid value for '-t' / '--threads': '1\\2' is not a valid integer range.\n"
            "help: h2o-run --help\n",
        ),
    ],
)
def test_the_command_that_was_meant_is_named(words: str, told: str) -> None:
    script, *rest = words.split()
    assert _told(script, rest) == (2, told)


def test_a_group_without_a_word_shows_its_help() -> None:
    code, told = _told("h2o-bench", [])
    assert code == 2
    assert told.startswith("Usage: h2o-bench [OPTIONS] COMMAND")


EXPORT = "name a bundle's folder, a GGUF file, a Hugging Face folder or OWNER/NAME without a flag"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("h2o-run -hf owner/name", f"No such option '-hf': {EXPORT}"),
        ("h2o-serve --hf-repo=owner/name", f"No such option '--hf-repo': {EXPORT}"),
        ("h2o-run -m a.gguf", f"No such option '-m': {EXPORT}"),
        ("h2o-run a -ngl 99", "No such option '-ngl': here it is --device"),
        ("h2o-run a -cnv", "No such option '-cnv': here it is --chat"),
        ("h2o-run a --n-predict 9", "No such option '--n-predict': here it is --max-tokens"),
        ("h2o-serve a --parallel 2", "No such option '--parallel': here it is --slots"),
        ("h2o-serve a -ctk q8_0", "No such option '-ctk': here it is --cache"),
        ("h2o-run a -fa on", "No such option '-fa': it is not needed here; leave it out"),
        ("h2o-eval a -ngl 99", "No such option '-ngl': here it is --device"),
        ("h2o-build a --parallel 2", "No such option '--parallel'."),
    ],
)
def test_a_flag_of_llama_cpp_is_told_as_ours(words: str, told: str) -> None:
    script, *rest = words.split()
    code, shown = _told(script, rest)
    assert (code, shown.splitlines()[0]) == (2, f"error: {told}")


def test_a_value_may_look_like_a_flag() -> None:
    assert _told("h2o-run", ["/nowhere", "--prompt", "-cnv"])[0] == 1
