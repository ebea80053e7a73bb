"""Kinds of things that can be named: those of this package, and those that other packages bring."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from importlib.metadata import entry_points
from typing import ClassVar, Generic, Protocol, TypeVar

from h2o_runtime.errors import ConfigError


class Named(Protocol):
    name: ClassVar[str]


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    """Classes by their `name`. The first one is the default.

    Another package registers its own by an entry point in `group`, as in its pyproject.toml:

        [project.entry-points."h2o_edge.prefill_policies"]
        mine = "my_package.my_policy:MyPolicy"
    """

    def __init__(self, field: str, group: str, *builtin: type[T]) -> None:
        """field: the setting that chooses one, for error messages."""
        self._field = field
        self._group = group
        self._builtin = builtin

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
