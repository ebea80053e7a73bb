"""Registries of named classes: this package's own, and those of other packages.

Nothing happens at import: entry points are loaded when a registry is first used.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from h2o_runtime.components.options import Option, options_of
from h2o_runtime.errors import ConfigError

log = logging.getLogger(__name__)


class Named(Protocol):
    """A dataclass whose fields are options."""

    name: ClassVar[str]
    title: ClassVar[str]


class Variant(Named, Protocol):
    """A subclass that replaces an entry under some of its settings."""

    @classmethod
    def serves(cls, settings: Mapping[str, Any]) -> bool: ...


T = TypeVar("T", bound=Named)


def load_entry_points(group: str, take: Callable[[Any], None]) -> None:
    """Call `take` with everything that other packages registered in `group`.

    Whatever cannot be loaded, or makes `take` raise, is skipped with one warning: a broken package must not
    stop a command that does not use it.
    """
    for point in entry_points(group=group):
        try:
            take(point.load())
        except Exception as error:  # another package may raise anything
            reason = f"{type(error).__name__}: {error}"
            log.warning("%s: the entry point %s = %s is left out: %s", group, point.name, point.value, reason)


@dataclass
class _Found(Generic[T]):
    """Entries by name, and the options of all kinds by name."""

    entries: dict[str, type[T]] = field(default_factory=dict)
    options: dict[str, Option] = field(default_factory=dict)

    def add_options(self, kind: type[Any], options: Iterable[Option]) -> None:
        """Classes may share options with the same name. Raises ConfigError if the definitions differ."""
        merged = dict(self.options)
        owners = {flag: one.name for one in merged.values() for flag in one.flags}
        for one in options:
            if merged.setdefault(one.name, one) != one:
                raise ConfigError(
                    f"{kind.__name__} and another class define the option {one.name!r} differently",
                    field=one.name,
                )
            for flag in one.flags:
                if owners.setdefault(flag, one.name) != one.name:
                    raise ConfigError(
                        f"the flag {flag} of {one.name} is taken by {owners[flag]}", field=one.name
                    )
        self.options = merged


class Registry(Generic[T]):
    """Classes by their `name`. The first one is the default.

    Another package registers its own with an entry point in `group`, in its pyproject.toml:

        [project.entry-points."h2o_edge.prefill_policies"]
        mine = "my_package.my_policy:MyPolicy"
    """

    def __init__(
        self,
        *builtin: type[Any],
        base: type[Any],
        field: str,
        flag: str,
        label: str,
        meaning: str,
        group: str,
        symbol: str = "",
        name: str = "name",
        title: str = "title",
        prefix: str = "",
        variants: tuple[type[Variant], ...] = (),
        families: Mapping[type[Any], Registry[Any]] | None = None,
    ) -> None:
        """base: every entry is a subclass of it. field: the setting that chooses one; flag, label, meaning and
        symbol are those of its `Option`. name, title: attributes of an entry's class. prefix: what names of options
        begin with that another package adds to those of `base`. families: of entries that are base classes, who
        chooses the subclass."""
        self._builtin, self._base, self._variants = builtin, base, variants
        self._field, self.flag, self._label = field, flag, label
        self._meaning, self._symbol = meaning, symbol
        self._group, self._name, self._title = group, name, title
        self._prefix, self._families = prefix, dict(families or {})

    @cached_property
    def _found(self) -> _Found[T]:
        found: _Found[T] = _Found()
        for one in self._builtin:
            self._add(one, found)
        for variant in self._variants:
            found.add_options(variant, options_of(variant))

        def take(one: Any) -> None:
            self._check(one)
            self._add(one, found)

        load_entry_points(self._group, take)
        return found

    def _check(self, one: Any) -> None:
        """Raises TypeError for an object that is no entry, ConfigError for one with contradictory
        defaults.
        """
        if not (inspect.isclass(one) and issubclass(one, self._base)):
            raise TypeError(f"{one!r} is no subclass of {self._base.__name__}")
        for attribute in (self._name, self._title):
            if not isinstance(getattr(one, attribute, None), str):
                raise TypeError(f"{one.__name__}.{attribute} must be a string")
        shared = {option.name for option in options_of(self._base)}
        for option in options_of(one):
            names = (option.name, *(flag.lstrip("-").replace("-", "_") for flag in option.flags))
            if option.name not in shared and not all(name.startswith(self._prefix) for name in names):
                raise ConfigError(f"the option {option.name} and its flags must begin with {self._prefix}")
        one()

    def _add(self, one: type[T], found: _Found[T]) -> None:
        name = self.name_of(one)
        if name in found.entries:
            raise ConfigError(f"there is already a {self._field} named {name!r}", field=self._field)
        found.add_options(one, self._options_of(one))
        found.entries[name] = one

    def name_of(self, kind: type[T]) -> str:
        name: str = getattr(kind, self._name)
        return name

    def _options_of(self, one: type[T]) -> tuple[Option, ...]:
        """An entry's options, including those of a family's members; without the choice. Raises
        ConfigError.
        """
        family, found = self._families.get(one), {option.name: option for option in options_of(one)}
        if family is not None:
            found |= {option.name: option for option in family.options}
        choice = found.pop(self._field, None)
        if choice is not None and (self._name != self._field or choice.default != self.name_of(one)):
            raise ConfigError(
                f"{self._field} is the name of the choice itself, so no option can have it", field=self._field
            )
        return tuple(found.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._found.entries)

    def __iter__(self) -> Iterator[type[T]]:
        return iter(self._found.entries.values())

    def __getitem__(self, name: str) -> type[T]:
        """Raises ConfigError for an unknown name."""
        if name not in self.names:
            raise ConfigError(
                f"{self._field} must be one of {', '.join(self.names)}, but is {name!r}", field=self._field
            )
        return self._found.entries[name]

    @property
    def kinds(self) -> tuple[type[T], ...]:
        """Every class that `make` may instantiate: members in place of their family."""
        variants: tuple[Any, ...] = self._variants
        own = (
            kind for one in self for kind in (self._families[one].kinds if one in self._families else (one,))
        )
        return (*own, *variants)

    def having(self, option: Option) -> tuple[str, ...]:
        """Names of the entries with this option, in themselves or a member."""
        return tuple(
            name
            for name, one in self._found.entries.items()
            if option.name == self._field or option in self._options_of(one)
        )

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The choice itself, then every entry's and variant's options; options with the same name are
        shared.
        """
        return (self._choice(), *self._found.options.values())

    def make(self, settings: Mapping[str, Any]) -> T:
        """The entry that `settings` choose, with its own settings; missing ones have their defaults."""
        kind = self._chosen_kind(settings)
        own = {one.name for one in options_of(kind)}
        return kind(**{name: value for name, value in settings.items() if name in own})

    def _chosen_kind(self, settings: Mapping[str, Any]) -> type[T]:
        entry = self[settings.get(self._field, self.names[0])]
        if entry in self._families:
            return self._families[entry]._chosen_kind(settings)
        variants: tuple[Any, ...] = self._variants
        return next((one for one in variants if one.serves(settings) and issubclass(one, entry)), entry)

    def settings_of(self, made: T) -> dict[str, Any]:
        """The choice's option, and the entry's options by name."""
        own = {one.name: getattr(made, one.name) for one in options_of(type(made))}
        return {self._field: self.name_of(type(made))} | own

    def chosen(self, given: Mapping[str, Any]) -> T:
        """The result of `make` for given settings. Raises ConfigError for a setting without effect."""
        made = self.make(given)
        self.check_used(given, made)
        return made

    def check_used(self, given: Iterable[str], *made: T, flags: bool = True) -> None:
        """Raises ConfigError for a given setting that none of `made` has.

        given: names of settings. made: entries, registered or not. flags: whether the message names settings
        as flags.
        """
        used = {self._field} | {one.name for entry in made for one in options_of(type(entry))}
        choice = self.flag if flags else self._field
        for option in self.options:
            if option.name in given and option.name not in used:
                for family in self._families.values():
                    members = [one for one in made if isinstance(one, family._base)]
                    if members:
                        family.check_used((option.name,), *members, flags=flags)
                names = (self.name_of(type(one)) for one in made)
                mine = (f"{choice} {name}" for name in names if name in self.names)
                variants: tuple[Any, ...] = self._variants
                kinds = (
                    self._asked_for_by(kind, choice, flags)
                    for kind in (*self, *variants)
                    if option in self._options_of(kind)
                )
                raise ConfigError(
                    f"{_name(option, flags)} has no effect with {' and '.join(dict.fromkeys(mine))}: it belongs to "
                    f"{' or '.join(dict.fromkeys(kinds))}",
                    field=option.name,
                )

    def _asked_for_by(self, kind: type[T], choice: str, flags: bool) -> str:
        entry = self[self.name_of(kind)]
        own = [option for option in options_of(kind) if option not in options_of(entry)]
        return _name(own[0], flags) if own else f"{choice} {self.name_of(kind)}"

    def _choice(self) -> Option:
        about = {name: getattr(one, self._title) for name, one in self._found.entries.items()}
        titles = ", ".join(name if title == name else f"{name} ({title})" for name, title in about.items())
        return Option(
            name=self._field,
            type=str,
            default=self.names[0],
            meaning=f"{self._meaning}: {titles}.",
            label=self._label,
            symbol=self._symbol,
            flags=(self.flag,),
            choices=self.names,
            words=(),
            least=None,
            numeric=True,
        )


def _name(option: Option, flags: bool) -> str:
    return option.flags[-1] if flags else option.name
