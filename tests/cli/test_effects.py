"""An option that would have no effect is an error: each declares its condition, or has an effect always."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from tests.path_options import all_commands

from h2o_cli.effects import Beside, Either, NotBeside, Where, flag_of, needing, needs_of
from h2o_cli.settings_text import SettingsText
from h2o_cli.usage import Command

COMMANDS = all_commands()
of_each_command = pytest.mark.parametrize("name", COMMANDS)

# Options that have an effect whatever the others are.
ALWAYS = {
    *("help_all", "version", "verbose", "as_json", "log_format", "dry_run", "force", "verify"),
    *("threads", "context", "max_context", "batch_size", "decode", "cache"),
    # The registry checks these.
    *("prefill", "short_batch_size", "short_chunk_size", "short_local", "short_heavy"),
    *("dtype", "weights", "output", "target", "stages", "adapter", "list", "remove"),
    *("prompt", "file", "chat", "max_tokens", "stop", "ignore_eos", "temperature", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "load_cache", "save_cache"),
    *("host", "port", "alias", "api_key_file", "cors_origin", "allowed_hosts", "metrics_names"),
    *("slots", "dialect", "chat_template", "pooling", "limits", "grace"),
    *("cache_pool", "cache_dir"),
    *("lengths", "repetitions", "peers", "time_limit", "text", "csv_file"),
    *("beside", "decode_tokens"),
    *("texts", "length", "metrics", "baselines"),
}
# Options whose effect depends on the bundle, the device or the machine: the runtime refuses them there.
OF_BUNDLE = {"backend", "device", "compute", "packed_weights"}

NUMBERS = ("0", "1", "2")
WORDS = {  # values of options whose type says nothing about them
    "baselines": ("none",),
    "cache": ("evicting rows=9", "paged"),
    "decode": ("quest", "full"),
    "length": ("16",),
    "metrics": ("decode", "perplexity", "recall", "needle", "none"),
    "model": ("smollm2-135m", "bundle"),
    "peers": ("none", "all"),
}


def options(command: click.Command) -> Iterator[click.Option]:
    return (one for one in command.params if isinstance(one, click.Option))


@of_each_command
def test_every_command_checks_its_options(name: str) -> None:
    assert isinstance(COMMANDS[name], Command)


@of_each_command
def test_an_option_has_an_effect_always_or_says_when(name: str) -> None:
    for option in options(COMMANDS[name]):
        assert needs_of(option) or str(option.name) in ALWAYS | OF_BUNDLE, (
            f"{name} {flag_of(option)}: declare its condition, or add it to ALWAYS"
        )


CONDITIONAL = [
    (name, str(option.name))
    for name, command in COMMANDS.items()
    for option in options(command)
    if needs_of(option)
]


@pytest.mark.parametrize(("name", "parameter"), CONDITIONAL)
def test_a_condition_that_is_not_met_names_both_options(name: str, parameter: str) -> None:
    command = COMMANDS[name]
    option = by_name(command, parameter)
    others = sorted({other for need in needs_of(option) for other in others_of(need.condition)})
    own = next((str(value) for need in needs_of(option) for value in need.of), None)
    text = own and (
        f"{own}={option.type.options[own].default}" if isinstance(option.type, SettingsText) else own
    )
    refused, accepted = 0, 0
    for values in itertools.product(*(values_of(by_name(command, other)) for other in others)):
        given = dict(zip(others, values, strict=True)) | {parameter: text or values_of(option)[-1]}
        message = refusal(command, given)
        if message is None:
            accepted += 1
        elif "has no effect" in message and message.startswith(flag_of(option)):
            refused += 1
            assert any(flag_of(by_name(command, other)) in message for other in others)
    assert refused
    assert accepted


@of_each_command
def test_an_option_is_given_once(name: str) -> None:
    command = COMMANDS[name]
    for option in options(command):
        value = values_of(option)[-1]
        if option.multiple or option.count or option.is_eager or value is None:
            continue
        words = [flag_of(option), *([] if option.is_flag else [value])]
        with pytest.raises(click.UsageError) as refused:
            command.make_context(name, [*line(command, {}, without=str(option.name)), *words, *words])
        assert f"{flag_of(option)} has no effect but for the last of 2 times" in refused.value.message


def test_a_variable_of_the_environment_counts_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command(cls=Command)
    @click.option("--chat", is_flag=True)
    @needing(Beside("chat"), click.option("--system", envvar="SYSTEM"))
    def command(**flags: Any) -> None: ...

    command.make_context("it", [])
    monkeypatch.setenv("SYSTEM", "Be brief.")
    command.make_context("it", ["--chat"])
    with pytest.raises(click.UsageError, match="--system has no effect without --chat: add --chat, or leave"):
        command.make_context("it", [])


def by_name(command: click.Command, name: str) -> click.Parameter:
    return next(one for one in command.params if one.name == name)


def others_of(condition: Any) -> set[str]:
    if isinstance(condition, Either):
        return others_of(condition.first) | others_of(condition.second)
    assert isinstance(condition, Beside | NotBeside | Where)
    return {condition.parameter}


def values_of(parameter: click.Parameter) -> tuple[str | None, ...]:
    """Values to try, the last of which is no special one; None is not given."""
    kind, own = parameter.type, WORDS.get(str(parameter.name))
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return None, flag_of(parameter)
    if own:
        return (None, *own)
    if isinstance(kind, SettingsText):
        option = next(one for one in kind.options.values() if one.choices or one.number)
        return None, f"{option.name}={option.choices[-1] if option.choices else 2}"
    if isinstance(kind, click.Choice):
        return (None, *map(str, kind.choices))
    if isinstance(kind, click.Path):
        return None, str(Path(__file__).parent if not kind.file_okay else Path(__file__))
    if isinstance(kind, click.types.StringParamType):
        return None, "text"
    return (None, *NUMBERS)


def line(command: click.Command, given: dict[str, Any], without: str = "") -> list[str]:
    """The words of a command line with what the command requires beside."""
    words: list[str] = []
    for one in command.params:
        value = given.get(str(one.name)) or (values_of(one)[-1] if one.required else None)
        if value is None or one.name == without:
            continue
        if isinstance(one, click.Argument) or (isinstance(one, click.Option) and one.is_flag):
            words.append(value)
        else:
            words += [flag_of(one), value]
    return words


def refusal(command: click.Command, given: dict[str, Any]) -> str | None:
    try:
        command.make_context("it", line(command, given))
    except click.UsageError as error:
        return error.message
    return None
