"""Kinds of things that can be named: those of this package, and those that other packages bring."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from h2o_runtime.errors import ConfigError
from h2o_runtime.options import Option, options_of


class Named(Protocol):
    """A dataclass whose fields are options."""

    name: ClassVar[str]
    title: ClassVar[str]


class Variant(Named, Protocol):
    """A subclass that takes an entry's place under some settings of it."""

    @classmethod
    def serves(cls, settings: Mapping[str, Any]) -> bool: ...


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    """Classes by their `name`. The first one is the default.

    Another package registers its own by an entry point in `group`, as in its pyproject.toml:

        [project.entry-points."h2o_edge.prefill_policies"]
        mine = "my_package.my_policy:MyPolicy"
    """

    def __init__(
        self,
        *builtin: type[T],
        field: str,
        flag: str,
        label: str,
        meaning: str,
        group: str,
        variants: tuple[type[Variant], ...] = (),
    ) -> None:
        """field: the setting that chooses one; flag, label and meaning are those of its `Option`."""
        self._builtin, self._variants = builtin, variants
        self._field, self._flag, self._label, self._meaning = field, flag, label, meaning
        self._group = group

    @cached_property
    def _entries(self) -> dict[str, type[T]]:
        found = {one.name: one for one in self._builtin}
        for point in entry_points(group=self._group):
            one: type[T] = point.load()
            if one.name in found:
                raise ConfigError(
                    f"{point.value}: there is already a {self._field} named {one.name!r}", field=self._field
                )
            found[one.name] = one
        return found

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def __iter__(self) -> Iterator[type[T]]:
        return iter(self._entries.values())

    def __getitem__(self, name: str) -> type[T]:
        """Raises ConfigError for a name that nobody has."""
        if name not in self._entries:
            raise ConfigError(
                f"{self._field} must be one of {', '.join(self.names)}, but is {name!r}", field=self._field
            )
        return self._entries[name]

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The choice itself, then every entry's and variant's options; they share those with the same name.

        Raises ConfigError where two entries mean different things by one name.
        """
        found: dict[str, Option] = {self._field: self._choice()}
        for entry in (*self, *self._variants):
            for one in options_of(entry):
                if found.setdefault(one.name, one) != one:
                    raise ConfigError(
                        f"the {self._field} {entry.name} and another one mean different things by {one.name!r}",
                        field=one.name,
                    )
        return tuple(found.values())

    def make(self, settings: Mapping[str, Any]) -> T:
        """The entry that `settings` choose, with those that are its own; what is left out has its default."""
        entry = self[settings.get(self._field, self.names[0])]
        chosen = entry
        for one in self._variants:
            if one.serves(settings) and issubclass(one, entry):
                chosen = one
        own = {one.name for one in options_of(chosen)}
        return chosen(**{name: value for name, value in settings.items() if name in own})

    def chosen(self, given: Mapping[str, Any]) -> T:
        """What `make` makes of settings that somebody gave. Raises ConfigError for one that would do nothing."""
        made = self.make(given)
        self.check_used(given, made)
        return made

    def check_used(self, given: Iterable[str], *made: T, flags: bool = True) -> None:
        """Raises ConfigError for a setting that somebody gave and that none of `made` has.

        given: names of settings. made: entries, and what need not be registered. flags: whether the sentence calls
        settings as the command line does.
        """
        used = {self._field} | {one.name for entry in made for one in options_of(type(entry))}
        choice = self._flag if flags else self._field
        for option in self.options:
            if option.name in given and option.name not in used:
                mine = (f"{choice} {one.name}" for one in made if one.name in self.names)
                kinds = (
                    self._asked_for_by(kind, choice, flags)
                    for kind in (*self, *self._variants)
                    if option in options_of(kind)
                )
                raise ConfigError(
                    f"{_name(option, flags)} does nothing with {' and '.join(dict.fromkeys(mine))}: it goes with "
                    f"{' or '.join(dict.fromkeys(kinds))}",
                    field=option.name,
                )

    def _asked_for_by(self, kind: type[Named], choice: str, flags: bool) -> str:
        entry = self[kind.name]
        own = [option for option in options_of(kind) if option not in options_of(entry)]
        return _name(own[0], flags) if own else f"{choice} {kind.name}"

    def _choice(self) -> Option:
        titles = ", ".join(one.name if one.title == one.name else f"{one.name} ({one.title})" for one in self)
        return Option(
            name=self._field,
            type=str,
            default=self.names[0],
            meaning=f"{self._meaning}: {titles}.",
            label=self._label,
            symbol="",
            flags=(self._flag,),
            choices=self.names,
            words=(),
            least=None,
            numeric=True,
        )


def _name(option: Option, flags: bool) -> str:
    return option.flags[-1] if flags else option.name
