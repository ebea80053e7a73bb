"""Names of policies in tables: policies' texts are wide, and most of their settings are the same in every row."""

from __future__ import annotations

from collections.abc import Iterable

FITTING = 28  # characters of a name that stays as it is


def short_names(names: Iterable[str]) -> dict[str, str]:
    """A long name loses the settings that all names with its first word share. Different names stay different."""
    wanted = dict.fromkeys(names)
    return {name: name if len(name) <= FITTING else _shortened(name, wanted) for name in wanted}


def _shortened(name: str, names: Iterable[str]) -> str:
    first, *settings = name.split()
    shared = set(settings).intersection(*(name.split() for name in names if name.split()[0] == first))
    left = [setting for setting in settings if setting not in shared]
    return " ".join((first, *left, *(["…"] if shared else [])))
