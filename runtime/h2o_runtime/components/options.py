"""Self-describing configuration: dataclass fields with a meaning and a check.

How values are written in commands, requests and reports, the server's schema and its page's form follow from them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from h2o_runtime.errors import ConfigError

MOST = 2**31 - 1  # rows and positions are int32 in memory sets and page lists
_KEY = "option"
_TRUTH = {"true": True, "on": True, "false": False, "off": False}


@dataclass(frozen=True)
class Option:
    """One field of a configuration.

    meaning  one line, as help shows it
    label    its name for people, on the server's page
    choices  the values that there are, None for numbers
    words    values that stand beside numbers
    least    smallest number, None for any
    numeric  false where it never changes a result
    needs    another option of the class: where that one is 0 or false, this one has no effect
    without  another option of the class: where that one is neither 0 nor false, this one has no effect
    """

    name: str
    type: Any
    default: Any
    meaning: str
    label: str
    choices: tuple[str, ...] | None
    words: tuple[str, ...]
    least: int | None
    numeric: bool
    needs: str | None
    without: str | None

    @property
    def fixed(self) -> bool:
        """Whether the class leaves no choice: the value names a member of a family."""
        return self.choices is not None and len(self.choices) == 1

    @property
    def number(self) -> type[int] | type[float] | None:
        """What its numbers are; None where it has none."""
        members = get_args(self.type) or (self.type,)
        return next((kind for kind in (int, float) if kind in members), None)

    def parse(self, text: str) -> Any:
        """The value that a text stands for, not checked. Raises ConfigError for a text that is no number."""
        if self.type is bool:
            return _TRUTH.get(text.lower(), text)
        if self.number is None or text in self.words:
            return text
        try:
            return self.number(text)
        except ValueError:
            raise self._no_number(text) from None

    def without_effect(self, configuration: Any) -> str | None:
        """Why a given value changes nothing in `configuration`, as a part of a sentence; None: it may.

        A class may have reasons of its own: its `idle` gives them by the options' names.
        """
        if self.needs and not getattr(configuration, self.needs):
            return f"needs {self.needs}, which is {spelled_value(getattr(configuration, self.needs))}"
        if self.without and getattr(configuration, self.without):
            return (
                f"has no effect beside {self.without}={spelled_value(getattr(configuration, self.without))}"
            )
        idle: Mapping[str, str] = getattr(configuration, "idle", {})
        return idle.get(self.name)

    def check(self, value: Any) -> None:
        """Raises ConfigError for a value of another type or out of range."""
        if self.choices is not None:
            if value not in self.choices:
                raise ConfigError(
                    f"{self.name} must be one of {', '.join(self.choices)}, but is {value!r}", field=self.name
                )
        elif isinstance(value, str) and value in self.words:
            return
        elif self.type is bool:
            if not isinstance(value, bool):
                raise ConfigError(f"{self.name} must be true or false, but is {value!r}", field=self.name)
        elif self.number is int:
            self._check_integer(value)
        elif self.number is float:
            self._check_real(value)
        elif not isinstance(value, str):
            raise ConfigError(f"{self.name} must be a text, but is {value!r}", field=self.name)

    def _no_number(self, value: Any) -> ConfigError:
        kind = "an integer" if self.number is int else "a number"
        or_words = "".join(f" or {word}" for word in self.words)
        return ConfigError(f"{self.name} must be {kind}{or_words}, but is {value!r}", field=self.name)

    def _check_integer(self, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._no_number(value)
        if self.least is not None and value < self.least:
            raise ConfigError(f"{self.name} must be at least {self.least}, but is {value}", field=self.name)
        if value > MOST:
            raise ConfigError(f"{self.name} must be at most {MOST}, but is {value}", field=self.name)

    def _check_real(self, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._no_number(value)
        least = -float("inf") if self.least is None else self.least
        if not least <= value <= sys.float_info.max:  # an integer may be larger
            raise ConfigError(
                f"{self.name} must be a number of at least {least:g}, but is {value}", field=self.name
            )


def option(
    default: Any,
    meaning: str,
    *,
    label: str | None = None,
    least: int | None = None,
    numeric: bool = True,
    needs: str | None = None,
    without: str | None = None,
) -> Any:
    """A dataclass field that is an `Option`."""
    about = {"meaning": meaning, "least": least, "numeric": numeric, "needs": needs, "without": without}
    return field(default=default, metadata={_KEY: about if label is None else about | {"label": label}})


def options_of(configuration: Any) -> tuple[Option, ...]:
    """The options of a dataclass, in the order of its fields."""
    return _read_options(configuration)


@cache
def _read_options(configuration: Any) -> tuple[Option, ...]:
    hints = get_type_hints(configuration)
    return tuple(
        _option(field, hints[field.name]) for field in fields(configuration) if _KEY in field.metadata
    )


@dataclass(frozen=True)
class Configuration:
    """Fields are options, each checked by itself. Raises ConfigError for the first one out of range."""

    def __post_init__(self) -> None:
        for option in options_of(type(self)):
            option.check(getattr(self, option.name))


@dataclass(frozen=True)
class NamedConfiguration(Configuration):
    """One that `spelled` writes. name: as commands, requests and reports have it. title: as people read it."""

    name: ClassVar[str]
    title: ClassVar[str]

    def __str__(self) -> str:
        return spelled(self)


def effective_options(configuration: Any) -> tuple[Option, ...]:
    """The options of a value, without those that change nothing beside the others."""
    return tuple(
        option for option in options_of(type(configuration)) if option.without_effect(configuration) is None
    )


def spelled(configuration: Any, *, whole: bool = False) -> str:
    """The text that stands for a value: "h2o score=query heavy=192". Settings without effect are left out, and
    without `whole` those that have their defaults too.
    """
    words = [configuration.name]
    for option in sorted(effective_options(configuration), key=lambda option: not option.fixed):
        value = getattr(configuration, option.name)
        if whole or option.fixed or value != option.default:
            words.append(f"{option.name}={shlex.quote(spelled_value(value))}")
    return " ".join(words)


def spelled_value(value: Any) -> str:
    """A setting's value as texts have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _option(field: Field[Any], kind: Any) -> Option:
    """Raises TypeError for a field that cannot be an option, ConfigError for a default that fails its own
    check.
    """
    name, default, about = field.name, field.default, field.metadata[_KEY]
    if not isinstance(default, bool | int | float | str):
        raise TypeError(f"the option {name} needs a number, a string or a truth value as its default")
    found = Option(
        name=name,
        type=kind,
        default=default,
        choices=get_args(kind) if get_origin(kind) is Literal else None,
        words=tuple(
            word for member in get_args(kind) if get_origin(member) is Literal for word in get_args(member)
        ),
        **{"label": name.replace("_", " ").capitalize()} | about,
    )
    found.check(default)
    return found


def written_settings(text: str, noun: str, field: str, form: str) -> tuple[str | None, dict[str, str]]:
    """The word that a text begins with, None if that is a setting, and the values of its settings by name.

    noun and field name the text in messages, and form says how it is written. Raises ConfigError for words that are
    no settings, and for a setting that is given twice.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{noun} {text!r} cannot be read: {error}: close it", field=field) from None
    if not words:
        raise ConfigError(f"{noun} is empty: {form}", field=field)
    first = words.pop(0) if "=" not in words[0] else None
    settings: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not name or not value:
            raise ConfigError(f"{word!r} is no setting: {form}", field=field)
        name = name.replace("-", "_")
        if name in settings:
            raise ConfigError(f"{name} is given twice: write it once", field=name)
        settings[name] = value
    return first, settings
