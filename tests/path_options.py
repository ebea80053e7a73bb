"""Every option of every command that takes a path, tried with a name that a hub could have.

`python -m tests.path_options CHECKPOINT BUNDLE FOLDER` runs one case after the other in forks of itself, so
that libraries are loaded once, and makes the folder FOLDER/<case> before each: a trace of this process shows
which case a call is of.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from tests.forked import COMMANDS, LIBRARIES, THEIR_LIBRARIES, know_rates, share_traces

HUB_NAME = "owner/name"
SECONDS = 240  # for a case: those that write where they are told run to their end, on a busy machine too
OUTPUT, CODE = "output", "code"  # files of a case: what it printed, and its exit code

# Options that take a text which is no path. A new one with a text is tried like a path until it is named here.
WORDS = {*("prompt", "source", "system", "stop"), *("host", "alias", "cors_origin", "allowed_hosts")}
CHECKPOINTS = {"checkpoint", "bundle", "model"}  # arguments, which may be the name of one at the hub

BENCH = {"model": "{bundle}", "lengths": "16", "repetitions": "1"}

# What each command needs beside the option that is tried, so that it gets as far as using it, soon.
NEEDS: dict[str, dict[str, str]] = {
    "run": {"bundle": "{bundle}", "prompt": "Once", "max_tokens": "1"},
    "serve": {"bundle": "{bundle}", "port": "0"},
    "export": {"checkpoint": "{checkpoint}", "output": "made"},
    "build": {"bundle": "{bundle}", "target": "tensorrt", "dry_run": ""},
    "compare": {"bundle": "{bundle}", "length": "8"},
    "eval": {"bundle": "{bundle}", "length": "16", "metrics": "perplexity", "baselines": "none"},
    "bench prefill": BENCH | {"peers": "none"},
    "bench dense": {"bundle": "{bundle}"},
}

# What an option needs in any command, so that it is used.
BESIDE = {
    "checkpoint": {"peers": "transformers"},
    "packed_weights": {"compute": "dense_form=native"},
    "openvino_model": {"peers": "openvino-genai"},
    "work_dir": {"peers": "onnxruntime-genai"},
    "save": {"stages": "dense"},
}


@dataclass(frozen=True)
class Case:
    """One option or argument of a command. `name` is that of the command as users write it."""

    name: str
    parameter: str

    def __str__(self) -> str:
        return f"{self.name} {self.parameter}"


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """A command, or the commands of a group, by their names."""
    if isinstance(command, click.Group):
        for one, inner in command.commands.items():
            yield from leaves(inner, f"{name} {one}")
    else:
        yield name, command


def all_commands() -> dict[str, click.Command]:
    modules = {module.partition(".")[0]: f"h2o_cli.{module}" for module in COMMANDS}
    return {
        name: command
        for short, module in modules.items()
        for name, command in leaves(importlib.import_module(module).main, short)
    }


def takes_path(parameter: click.Parameter) -> bool:
    text = isinstance(parameter.type, click.types.StringParamType) and parameter.name not in WORDS
    return text or isinstance(parameter.type, click.Path | click.File)


def cases() -> list[Case]:
    """An option that commands of a group have in common is tried with the first of them."""
    found: dict[tuple[str, str], Case] = {}
    for name, command in all_commands().items():
        for parameter in command.params:
            argument = isinstance(parameter, click.Argument) and parameter.name in CHECKPOINTS
            if takes_path(parameter) and not argument:
                case = Case(name, str(parameter.name))
                found.setdefault((name.split()[0], case.parameter), case)
    return list(found.values())


def words(case: Case, command: click.Command, model: dict[str, str]) -> list[str]:
    """The command line after the command's name."""
    values = NEEDS[case.name] | BESIDE.get(case.parameter, {}) | {case.parameter: HUB_NAME}
    line: list[str] = []
    for one in command.params:
        value = values.get(str(one.name), "").format(**model)
        if str(one.name) not in values:
            continue
        if isinstance(one, click.Argument):
            line.append(value)
        elif isinstance(one, click.Option) and one.is_flag:
            line.append(value or max(one.opts, key=len))
        else:
            line += [max(one.opts, key=len), value]
    return line


def run(case: Case, command: click.Command, model: dict[str, str], folder: Path) -> None:
    """In a fork. A server is stopped once it is ready, because it has no end."""
    place = folder / str(case)
    place.mkdir()
    (place / OUTPUT).touch()
    child = os.fork()
    if not child:
        output = os.open(place / OUTPUT, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(place)
        sys.argv = [f"h2o-{case.name}", *words(case, command, model)]
        try:
            command.main(sys.argv[1:])
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
    limit, told, status = time.monotonic() + SECONDS, False, (0, 0)
    while status == (0, 0):
        time.sleep(0.02)
        ready = case.name == "serve" and " ready: " in (place / OUTPUT).read_text()
        if not told and (ready or time.monotonic() > limit):
            os.kill(child, signal.SIGTERM)
            told = True
        status = os.waitpid(child, os.WNOHANG)
    (place / CODE).write_text(str(os.waitstatus_to_exitcode(status[1])))


def main() -> None:
    model, folder = dict(zip(("checkpoint", "bundle"), sys.argv[1:3], strict=True)), Path(sys.argv[3])
    commands = all_commands()
    for library in (*LIBRARIES, *THEIR_LIBRARIES):
        importlib.import_module(library)
    know_rates()
    share_traces()
    for case in cases():
        run(case, commands[case.name], model, folder)


if __name__ == "__main__":
    main()
