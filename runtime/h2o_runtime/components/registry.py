"""Registries of named classes: this package's own, and those of other packages.

A registry reads and writes values of its classes as text, "h2o score=window heavy=192", and as settings by name.
Nothing happens at import: entry points are loaded when a registry is first used.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from h2o_runtime.components.options import effective_options, options_of, written_settings
from h2o_runtime.errors import ConfigError

log = logging.getLogger(__name__)


class Named(Protocol):
    """A dataclass whose fields are options."""

    name: ClassVar[str]
    title: ClassVar[str]


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
        group: str,
        name: str = "name",
        title: str = "title",
        noun: str = "",
        families: Mapping[type[Any], Registry[Any]] | None = None,
    ) -> None:
        """base: every entry is a subclass of it. field: the setting that names an entry. name, title: attributes
        of an entry's class. noun: what a value is, in messages; else the field. families: of entries that are base
        classes, the registry of their members.
        """
        self._builtin, self._base, self.field, self._group = builtin, base, field, group
        self._name, self._title, self._noun = name, title, noun or field
        self._families = dict(families or {})

    @cached_property
    def _entries(self) -> dict[str, type[T]]:
        found: dict[str, type[T]] = {}

        def add(kind: Any) -> None:
            name = self.name_of(kind)
            if name in found:
                raise ConfigError(f"there is already a {self._noun} named {name!r}", field=self.field)
            if kind not in self._families and self._name != self.field:
                self._check_names(kind)
            found[name] = kind

        def take(kind: Any) -> None:
            self._check(kind)
            add(kind)

        for kind in self._builtin:
            add(kind)
        load_entry_points(self._group, take)
        return found

    def _check(self, kind: Any) -> None:
        """Raises TypeError for an object that is no entry, ConfigError for one with contradictory
        defaults.
        """
        if not (inspect.isclass(kind) and issubclass(kind, self._base)):
            raise TypeError(f"{kind!r} is no subclass of {self._base.__name__}")
        for attribute in (self._name, self._title):
            if not isinstance(getattr(kind, attribute, None), str):
                raise TypeError(f"{kind.__name__}.{attribute} must be a string")
        named = {each.name: each for each in options_of(kind)}.get(self._name)
        if named is not None and not named.fixed:
            raise TypeError(f"{kind.__name__}.{self._name} must be a Literal of its one name")
        kind()

    def _check_names(self, kind: type[Any]) -> None:
        if any(option.name == self.field for option in options_of(kind)):
            raise ConfigError(
                f"{self.field} is the name of the choice itself, so no option can have it", field=self.field
            )

    def name_of(self, kind: type[T]) -> str:
        name: str = getattr(kind, self._name)
        return name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def __iter__(self) -> Iterator[type[T]]:
        return iter(self._entries.values())

    def __getitem__(self, name: str) -> type[T]:
        """Raises ConfigError for an unknown name."""
        if name not in self.names:
            raise self._unknown(name, self.names)
        return self._entries[name]

    @property
    def kinds(self) -> tuple[type[T], ...]:
        """Every class of which there are values: members in place of their family."""
        return tuple(
            kind
            for member in self
            for kind in (self._families[member].kinds if member in self._families else (member,))
        )

    @property
    def presets(self) -> dict[str, type[T]]:
        """The classes that have presets of their own, by the presets' names."""
        return {name: kind for kind in self.kinds for name in vars(kind).get("presets", {})}

    def make(self, settings: Mapping[str, Any], base: T | None = None) -> T:
        """The value of these settings.

        Settings with the entry's name, or a preset's, are a whole value; others have their defaults. Settings
        without one change `base`. Raises ConfigError for a setting that the entry does not have, or that has no
        effect.
        """
        given = {name: value for name, value in settings.items() if name != self.field}
        name = settings.get(self.field)
        before: dict[str, Any] = {}
        if name is None and base is not None:
            kind = self._member(self._entry_of(base), settings, base)
            before = self._shared(base, kind)
        elif name in [*self.presets]:
            kind = self.presets[name]
            before = vars(kind)["presets"][name]
        else:
            kind = self._member(self._named(self.names[0] if name is None else name), settings, None)
        options = {option.name: option for option in options_of(kind)}
        for setting in given:
            if setting not in options:
                raise ConfigError(self._lacks(kind, setting), field=setting)
        configuration = kind(**{**before, **given})
        for setting in given:
            if reason := options[setting].without_effect(configuration):
                raise ConfigError(f"{setting} {reason}: leave it out", field=setting)
        return configuration

    def read(self, text: str, base: T | None = None) -> T:
        """The value that a text stands for: a name and settings, or settings alone, which change `base`.

        Raises ConfigError as `make`, and for words that are no settings.
        """
        return self.make(self.settings_in(text, base), base)

    def settings_in(self, text: str, base: T | None = None) -> dict[str, Any]:
        """The settings that a text names, with the entry's name if it begins with one; others are read as those of
        `base`. Raises ConfigError.
        """
        form = f"write a {self._noun} as NAME SETTING=VALUE …, such as {self._example()!r}"
        name, settings = written_settings(text, self._noun, self.field, form)
        if name is not None and self.field in settings:
            raise ConfigError(f"{self.field} is given twice: write it once", field=self.field)
        written = settings if name is None else {self.field: name, **settings}
        known = {option.name: option for kind in self.kinds for option in options_of(kind)}
        if self.field in written:
            known |= {option.name: option for option in self._options_of(self._named(written[self.field]))}
        elif base is not None:
            known |= {option.name: option for option in self._options_of(self._entry_of(base))}
        return {name: known[name].parse(value) if name in known else value for name, value in written.items()}

    def settings_of(self, value: T) -> dict[str, Any]:
        """The name of the entry, and its settings, without those that have no effect: what `make` reads."""
        settings = {option.name: getattr(value, option.name) for option in effective_options(value)}
        return {self.field: self.name_of(type(value))} | settings

    def _named(self, name: Any) -> type[T]:
        """The entry of this name, or the class of this preset. Raises ConfigError."""
        if name in self.names:
            return self._entries[name]
        if name in [*self.presets]:
            return self.presets[name]
        raise self._unknown(name, (*self.names, *self.presets))

    def _unknown(self, name: Any, names: tuple[str, ...]) -> ConfigError:
        return ConfigError(
            f"{self._noun} must be one of {', '.join(names)}, but is {name!r}", field=self.field
        )

    def _options_of(self, entry: type[T]) -> tuple[Any, ...]:
        """Those of an entry; of a family those of all its members."""
        kinds = self._families[entry].kinds if entry in self._families else (entry,)
        return tuple(option for kind in kinds for option in options_of(kind))

    def _entry_of(self, value: T) -> type[T]:
        """Of a value whose class need not be registered."""
        family = next((family for family in self._families if isinstance(value, family)), None)
        return family or type(value)

    def _member(self, entry: type[T], settings: Mapping[str, Any], base: T | None) -> type[T]:
        """The class that makes the value: of a family the member that the settings name, or the one of `base`."""
        family = self._families.get(entry)
        if family is None:
            return entry
        if base is not None and family.field not in settings:
            return type(base)
        member: type[T] = family[settings.get(family.field, family.names[0])]
        return member

    def _shared(self, base: T, kind: type[T]) -> dict[str, Any]:
        """The settings of `base` that the class `kind` has too."""
        names = {option.name for option in options_of(kind) if not option.fixed}
        return {
            option.name: getattr(base, option.name)
            for option in options_of(type(base))
            if option.name in names
        }

    def _lacks(self, kind: type[T], setting: str) -> str:
        """Why a setting is refused, for messages."""
        names = [option.name for option in options_of(kind) if not option.fixed]
        owners = [
            self._words(kind) for kind in self.kinds if any(setting == has.name for has in options_of(kind))
        ]
        if owners:
            return f"{self._words(kind)} has no {setting}: it belongs to {' and '.join(owners)}"
        near = get_close_matches(setting, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names) or 'none'}"
        return f"{self._words(kind)} has no setting {setting}: {hint}"

    def _words(self, kind: type[T]) -> str:
        """The beginning of the texts that stand for a class."""
        fixed = [f" {option.name}={option.default}" for option in options_of(kind) if option.fixed]
        return f"{kind.name}{''.join(fixed)}"

    def _example(self) -> str:
        kind = self.kinds[0]
        option = next(
            (option for option in options_of(kind) if not option.fixed and not option.choices), None
        )
        return self._words(kind) + (f" {option.name}={option.default}" if option else "")
