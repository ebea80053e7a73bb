"""Options that have an effect only beside others: each declares its condition, and the command checks it once.

    needing(Beside("chat"), click.option("--system", …))

An option is checked where the user gave it, on the command line or in the environment; a default contradicts
nothing. That holds for settings of an option that takes several as one text too. Settings of policies, caches and
layer kinds are checked by their registries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import click
from click.core import ParameterSource

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SETTINGS = "h2o_cli.settings"  # key in a context's meta
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


class Condition(Protocol):
    """What the other parameters of a command must be."""

    def unmet(self, context: click.Context) -> tuple[str, str] | None:
        """None if it is met, else what is wrong and the remedy, each with the other option's flag."""
        ...


@dataclass(frozen=True)
class Beside:
    """The parameter is given, or with `values` has one of these."""

    parameter: str
    values: tuple[Any, ...] = ()

    def unmet(self, context: click.Context) -> tuple[str, str] | None:
        if _has(context.params[self.parameter], self.values):
            return None
        wanted = " ".join(
            filter(None, (_flag_in(context, self.parameter), " or ".join(map(str, self.values))))
        )
        return f"without {wanted}", f"add {wanted}"


@dataclass(frozen=True)
class NotBeside:
    """The parameter is not given, or with `values` has none of these."""

    parameter: str
    values: tuple[Any, ...] = ()

    def unmet(self, context: click.Context) -> tuple[str, str] | None:
        value = context.params[self.parameter]
        if not _has(value, self.values):
            return None
        flag = _flag_in(context, self.parameter)
        if not self.values:
            return f"with {flag}", f"leave out {flag}"
        shown = f"{value:g}" if isinstance(value, float) else value
        return f"with {flag} {shown}", f"change {flag}"


@dataclass(frozen=True)
class Where:
    """The value of the parameter, a policy or a cache, has a property."""

    parameter: str
    holds: Callable[[Any], bool]

    def unmet(self, context: click.Context) -> tuple[str, str] | None:
        value = context.params[self.parameter]
        if self.holds(value):
            return None
        flag = _flag_in(context, self.parameter)
        return f"with {flag} {value}", f"change {flag}"


@dataclass(frozen=True)
class Either:
    """One of two conditions."""

    first: Condition
    second: Condition

    def unmet(self, context: click.Context) -> tuple[str, str] | None:
        reasons = [condition.unmet(context) for condition in (self.first, self.second)]
        found = [reason for reason in reasons if reason is not None]
        if len(found) < 2:
            return None
        return found[0][0] + ", or " + found[1][0], found[0][1]


@dataclass(frozen=True)
class Need:
    """A condition of an option, for all its values, or for the values or settings in `of`."""

    condition: Condition
    of: tuple[Any, ...]


def needing(
    condition: Condition, *options: Callable[[Any], Any], of: tuple[Any, ...] = ()
) -> Callable[[_Command], _Command]:
    """All of `options`, which are decorators, as one decorator; each has an effect only if `condition` is met.

    of: values to which that applies, or settings of a text that has several; none: to all
    """

    def add(command: _Command) -> _Command:
        before = list(parameters(command))
        for option in reversed(options):
            command = option(command)
        for parameter in parameters(command):
            if parameter not in before:
                parameter.needs = (*needs_of(parameter), Need(condition, of))
        return command

    return add


def parameters(command: Any) -> list[Any]:
    """The options that decorators have added so far; click stores them on the function."""
    found: list[Any] = getattr(command, "__click_params__", [])
    return found


def needs_of(parameter: Any) -> tuple[Need, ...]:
    needs: tuple[Need, ...] = getattr(parameter, "needs", ())
    return needs


def note_settings(context: click.Context, parameter: click.Parameter, names: Iterable[str]) -> None:
    """Keep which settings the text of an option names."""
    context.meta[f"{_SETTINGS}.{parameter.name}"] = tuple(names)


def given_settings(context: click.Context, parameter: str) -> tuple[str, ...]:
    """Those that the user gave, defaults among them."""
    names: tuple[str, ...] = context.meta.get(f"{_SETTINGS}.{parameter}", ())
    return names


def flag_of(parameter: click.Parameter) -> str:
    """The name that messages use: an option's longest flag, or an argument's metavar."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.human_readable_name


def check_once(command: click.Command, ctx: click.Context, words: list[str]) -> None:
    """Of an option that is given twice only the last would count."""
    *_, order = command.make_parser(ctx).parse_args(words)
    for parameter, times in Counter(order).items():
        once = isinstance(parameter, click.Option) and not (parameter.multiple or parameter.count)
        if once and times > 1:
            raise click.UsageError(
                f"{flag_of(parameter)} has no effect but for the last of {times} times: give it once", ctx
            )


def check_needs(command: click.Command, ctx: click.Context) -> None:
    """Raises click.UsageError for an option without effect."""
    for parameter in command.params:
        if ctx.get_parameter_source(str(parameter.name)) not in _GIVEN:
            continue
        value = ctx.params.get(str(parameter.name))
        given = (value, *given_settings(ctx, str(parameter.name)))
        flag = max(parameter.secondary_opts, key=len) if value is False else flag_of(parameter)
        for need in needs_of(parameter):
            concerned = [f"{flag} {word}" for word in given if word in need.of] if need.of else [flag]
            unmet = need.condition.unmet(ctx) if concerned else None
            if unmet is not None:
                raise click.UsageError(
                    f"{concerned[0]} has no effect {unmet[0]}: {unmet[1]}, or leave out {concerned[0]}",
                    ctx,
                )


def _has(value: Any, values: tuple[Any, ...]) -> bool:
    """Whether a parameter is given, or with `values` has one of these; lists may have any of them."""
    if not values:
        return bool(value)
    return any(word in values for word in (value if isinstance(value, tuple) else (value,)))


def _flag_in(context: click.Context, name: str) -> str:
    return next(flag_of(param) for param in context.command.params if param.name == name)
