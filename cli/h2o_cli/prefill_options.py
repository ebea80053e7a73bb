"""The prefill flags, the same for every command, and the `PrefillConfig` made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from h2o_cli.common import setting_name
from h2o_cli.help import Command, Group, grouped
from h2o_runtime import PrefillConfig
from h2o_runtime.components.options import Option
from h2o_runtime.components.registry import Registry
from h2o_runtime.config.quality import MEANING, configured
from h2o_runtime.names import QUALITIES, Quality
from h2o_runtime.policies.prefill import PREFILL


class NumberOrWord(click.ParamType[int | str]):
    """An integer, or one of a few words."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words
        self.name = "|".join(("integer", *words))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in self._words:
            return value
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is not a valid integer, nor {' or '.join(self._words)}", param, ctx)


def registry_options(registry: Registry[Any], *, defaults: bool) -> Iterator[Callable[[Any], Any]]:
    """The flag of every option. Help names the entries that have it, and with `defaults` its default."""
    for one in registry.options:
        owners, notes = registry.having(one), []
        if 0 < len(owners) < len(registry.names):
            notes.append(f"{registry.flag} {' or '.join(owners)}")
        if defaults and one.default != "":
            default = ("off", "on")[one.default] if isinstance(one.default, bool) else one.default
            notes.append(f"default: {default}")
        yield click_option(one, f"  [{'; '.join(notes)}]" if notes else "")


def click_option(one: Option, note: str = "") -> Callable[[Command], Command]:
    """The flag of an option. It arrives as the keyword argument `setting_name`, None when not given."""
    about = one.meaning + note
    kind: Any = click.Choice(one.choices) if one.choices else type(one.default)
    if one.words:
        kind = NumberOrWord(one.words)
    if isinstance(one.default, bool):
        off = "--no-" + one.name.replace("_", "-")
        return click.option(f"{one.flags[-1]}/{off}", setting_name(one.name), default=None, help=about)
    return click.option(*one.flags, setting_name(one.name), type=kind, default=None, help=about)


def given_settings(options: Iterable[Option], flags: dict[str, Any]) -> dict[str, Any]:
    """Of some options those that were given, by their names. Takes them all out of `flags`."""
    values = {one.name: flags.pop(setting_name(one.name), None) for one in options}
    return {name: value for name, value in values.items() if value is not None}


def prefill_options(command: Command) -> Command:
    """Add a flag for every setting of every prefill policy, named as in `PrefillConfig`, and `--quality`."""
    quality = click.option("--quality", type=click.Choice(QUALITIES), help=MEANING)
    return grouped(Group.PREFILL, quality, *registry_options(PREFILL, defaults=False))(command)


def prefill_config(defaults: PrefillConfig, flags: dict[str, Any]) -> PrefillConfig:
    """`defaults` (a bundle's, or the built-in ones) with the given flags applied.

    Takes its own arguments out of `flags`. Raises ConfigError for flags that contradict each other, and for
    one that the policy does not have.
    """
    given = GivenPrefill.of(flags)
    config = given.over(defaults)
    given.check_used(config)
    return config


@dataclass(frozen=True)
class GivenPrefill:
    """The given prefill flags, for a command that runs more than one policy."""

    settings: Mapping[str, Any]
    quality: Quality | None

    @classmethod
    def of(cls, flags: dict[str, Any]) -> GivenPrefill:
        """Takes its own arguments out of `flags`."""
        return cls(given_settings(PREFILL.options, flags), flags.pop("quality"))

    def over(self, defaults: PrefillConfig) -> PrefillConfig:
        """Raises ConfigError for flags that contradict each other."""
        return configured(defaults, self.settings, self.quality)

    def check_used(self, *configs: PrefillConfig) -> None:
        """Raises ConfigError for a flag that no policy of `configs` has."""
        PREFILL.check_used(self.settings, *(one.algorithm for one in configs))
