"""Entry points: what happens before a command's own code runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from h2o_cli import entry

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
SCRIPTS: dict[str, str] = PROJECT["project"]["scripts"]

# The signal comes when the command's module is imported, or when click has it: before, it is Python's own start.
PROGRAM = """
import signal, sys
number = int(sys.argv[3])
signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
from h2o_cli import entry
import_module = entry.import_module
def importing(name):
    if sys.argv[2] == "before":
        signal.raise_signal(number)
    module = import_module(name)
    if sys.argv[2] == "after":
        signal.raise_signal(number)
    parse_args = module.main.parse_args
    def parsing(*args):
        signal.raise_signal(number)
        return parse_args(*args)
    module.main.parse_args = parsing
    return module
entry.import_module = importing
getattr(entry, sys.argv[1])()
"""


def test_every_script_has_its_entry() -> None:
    for name, target in SCRIPTS.items():
        module, _, function = target.partition(":")
        assert module == entry.__name__, name
        assert callable(getattr(entry, function)), name


@pytest.mark.parametrize(
    ("name", "number", "when"), [("run", 1, "before"), ("bench", 2, "after"), ("run", 15, "parsing")]
)
def test_a_signal_before_a_command_begins_ends_it_without_a_word(name: str, number: int, when: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, when, str(number)],
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, b"", b"")
