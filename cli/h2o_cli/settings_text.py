"""An option that takes several settings as one text: --limits "queue=8 body=16".

A frozen dataclass whose fields are `option`s describes them. It checks its own values, and its `title` says what
they are for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

import click

from h2o_cli.effects import flag_of, note_settings
from h2o_runtime.components.options import MOST, Option, options_of, spelled_value, written_settings
from h2o_runtime.errors import ConfigError

T = TypeVar("T")
HELP = "help"


class SettingsText(click.ParamType[T], Generic[T]):
    """A text that stands for a value of `kind`; settings that it leaves out have their defaults. "help" prints
    them all.
    """

    name = "SETTINGS"

    def __init__(self, kind: type[T], first: str | None = None) -> None:
        """first: the setting whose value may stand at the beginning, without its name."""
        self.kind, self.first = kind, first
        self.options = {option.name: option for option in options_of(kind)}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        flag = "the text" if param is None else flag_of(param)
        if value.strip() == HELP and ctx is not None:
            click.echo(self.described(flag))
            ctx.exit()
        try:
            given = self._given(value, flag)
            if ctx is not None and param is not None:
                note_settings(ctx, param, given)
            return self._made(given)
        except ConfigError as error:
            self.fail(str(error), param, ctx)

    def _given(self, text: str, flag: str) -> dict[str, Any]:
        """The settings that a text names. Raises ConfigError for one that there is not."""
        word, written = written_settings(text, flag, "", f"write {self._form()}, or help")
        if word is not None:
            if self.first is None:
                raise ConfigError(f"{word!r} is no setting: write {self._form()}, or help")
            if self.first in written:
                raise ConfigError(f"{self.first} is given twice: write it once", field=self.first)
            written = {self.first: word} | written
        return {name: self._option(name).parse(value) for name, value in written.items()}

    def _made(self, given: dict[str, Any]) -> T:
        """Raises ConfigError for a setting that is out of range, or that has no effect."""
        settings = self.kind(**given)
        for name in given:
            if reason := self.options[name].without_effect(settings):
                raise ConfigError(f"{name} {reason}: leave it out", field=name)
        return settings

    def described(self, flag: str) -> str:
        """What --help cannot show: every setting with its default."""
        title = getattr(self.kind, "title", "")
        return "\n".join(
            [f'{flag} "{self._form()}"   {title}'.rstrip(), *setting_lines(self.options.values())]
        )

    def _form(self) -> str:
        named = " ".join(f"{name}=…" for name in self.options if name != self.first)
        return named if self.first is None else f"{self.first.upper()} {named}"

    def _option(self, name: str) -> Option:
        if name not in self.options:
            near = get_close_matches(name, self.options, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.options)}"
            raise ConfigError(f"there is no setting {name}: {hint}", field=name)
        return self.options[name]


class Names(click.ParamType[tuple[str, ...]]):
    """Some of the known names, separated by commas, or all, or none."""

    name = "NAMES"

    def __init__(self, what: str, known: Callable[[], tuple[str, ...]]) -> None:
        self._what, self._known = what, known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        known = self._known()
        if value in ("all", "none"):
            return known if value == "all" else ()
        names = tuple(dict.fromkeys(name.strip() for name in str(value).split(",")))
        unknown = [name for name in names if name not in known]
        if unknown:
            self.fail(
                f"{unknown[0]!r} is no {self._what}: choose from {', '.join(known)}, all, none", param, ctx
            )
        return names


def setting_lines(options: Iterable[Option]) -> list[str]:
    """A line a setting: its values or its default, and its meaning."""
    return [f"  {_setting(option):<24} {option.meaning}" for option in options]


def _setting(option: Option) -> str:
    if option.choices:
        return f"{option.name}={'|'.join(option.choices)}"
    return f"{option.name}={spelled_value(option.default)}"


def numbers_in(text: str, name: str) -> tuple[int, ...]:
    """The integers of a setting that lists them: "87,90". Raises ConfigError."""
    found = counts_in(text)
    if not found:
        raise ConfigError(
            f"{name} must be integers from 1 to {MOST:,}, such as {name}=2,4, but is {text!r}", field=name
        )
    return found


def counts_in(text: str) -> tuple[int, ...]:
    """The sorted integers of a list such as "87,90"; none if one of them is no integer from 1 to MOST."""
    words = [word.strip() for word in text.split(",")]
    return tuple(sorted({int(word) for word in words})) if all(map(_is_count, words)) else ()


def _is_count(word: str) -> bool:
    """Python refuses to read an integer of thousands of digits."""
    return word.isascii() and word.isdigit() and len(word) <= len(str(MOST)) and 1 <= int(word) <= MOST
