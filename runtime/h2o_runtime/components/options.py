"""Self-describing configuration: dataclass fields with a meaning, a check and a flag.

The commands' flags, the server's request schema, its page's form and all reports are generated from them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from h2o_runtime.errors import ConfigError

MOST = 2**31 - 1  # rows and positions are int32 in memory sets and page lists
_KEY = "option"
_FLAG = re.compile("--[a-z][a-z0-9-]*|-[a-z]{1,2}")


@dataclass(frozen=True)
class Option:
    """One field of a configuration.

    meaning  one line, as --help shows it
    label    its name for people, on the server's page
    symbol   its name in the few words of a report; empty keeps it out
    flags    of the command line
    choices  the values that there are, None for numbers
    words    values that stand beside numbers
    least    smallest number, None for any
    numeric  false where it never changes a result
    """

    name: str
    type: Any
    default: Any
    meaning: str
    label: str
    symbol: str
    flags: tuple[str, ...]
    choices: tuple[str, ...] | None
    words: tuple[str, ...]
    least: int | None
    numeric: bool

    def check(self, value: Any) -> None:
        """Raises ConfigError for a value of another type or out of range."""
        if self.choices is not None:
            if value not in self.choices:
                raise ConfigError(
                    f"{self.name} must be one of {', '.join(self.choices)}, but is {value!r}", field=self.name
                )
        elif isinstance(value, str) and value in self.words:
            return
        elif isinstance(self.default, bool):
            if not isinstance(value, bool):
                raise ConfigError(f"{self.name} must be true or false, but is {value!r}", field=self.name)
        elif isinstance(self.default, int):
            self._check_integer(value)
        elif isinstance(self.default, float):
            self._check_real(value)

    def _check_integer(self, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            or_words = "".join(f" or {word}" for word in self.words)
            raise ConfigError(f"{self.name} must be an integer{or_words}, but is {value!r}", field=self.name)
        if self.least is not None and value < self.least:
            raise ConfigError(f"{self.name} must be at least {self.least}, but is {value}", field=self.name)
        if value > MOST:
            raise ConfigError(f"{self.name} must be at most {MOST}, but is {value}", field=self.name)

    def _check_real(self, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.name} must be a number, but is {value!r}", field=self.name)
        least = -float("inf") if self.least is None else self.least
        if not least <= value < float("inf"):
            raise ConfigError(
                f"{self.name} must be a number of at least {least:g}, but is {value}", field=self.name
            )


def option(
    default: Any,
    meaning: str,
    *,
    label: str | None = None,
    symbol: str | None = None,
    flags: tuple[str, ...] = (),
    least: int | None = None,
    numeric: bool = True,
) -> Any:
    """A dataclass field that is an `Option`. Without `flags` its flag is its name."""
    about = {"meaning": meaning, "label": label, "symbol": symbol, "flags": flags}
    return field(default=default, metadata={_KEY: about | {"least": least, "numeric": numeric}})


def options_of(configuration: Any) -> tuple[Option, ...]:
    """The options of a dataclass, in the order of its fields."""
    return _read_options(configuration)


@cache
def _read_options(configuration: Any) -> tuple[Option, ...]:
    hints = get_type_hints(configuration)
    return tuple(
        _option(one.name, hints[one.name], one.default, **one.metadata[_KEY])
        for one in fields(configuration)
        if _KEY in one.metadata
    )


def check_options(configuration: Any) -> None:
    """Check every option of an instance separately. Raises ConfigError for the first one out of range."""
    for one in options_of(type(configuration)):
        one.check(getattr(configuration, one.name))


def _option(
    name: str,
    kind: Any,
    default: Any,
    meaning: str,
    label: str | None,
    symbol: str | None,
    flags: tuple[str, ...],
    least: int | None,
    numeric: bool,
) -> Option:
    """Raises TypeError for a field that cannot be an option, ConfigError for a default that fails its own
    check.
    """
    if not isinstance(default, bool | int | float | str):
        raise TypeError(f"the option {name} needs a number, a string or a truth value as its default")
    if flags and not all(_FLAG.fullmatch(flag) for flag in flags):
        raise TypeError(f"the option {name} has flags that are none: {', '.join(map(repr, flags))}")
    words = name.replace("_", " ")
    made = Option(
        name=name,
        type=kind,
        default=default,
        meaning=meaning,
        label=words.capitalize() if label is None else label,
        symbol=name if symbol is None else symbol,
        flags=flags or ("--" + name.replace("_", "-"),),
        choices=get_args(kind) if get_origin(kind) is Literal else None,
        words=tuple(
            word for member in get_args(kind) if get_origin(member) is Literal for word in get_args(member)
        ),
        least=least,
        numeric=numeric,
    )
    made.check(default)
    return made
