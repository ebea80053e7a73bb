"""Checked numbers of a parsed `config.json`; an error names the wrong key."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from h2o_runtime.errors import CheckpointError, UnsupportedModelError
from h2o_runtime.limits import MAX_SIZE

LARGEST = sys.float_info.max  # JSON has integers beyond it


def integer(
    raw: dict[str, Any], key: str, default: int | None = None, least: int = 1, limit: int = MAX_SIZE
) -> int:
    """Raises CheckpointError if `key` has another type, or is missing without a default."""
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        kind = "a positive integer" if least == 1 else f"an integer of {least} or more"
        raise CheckpointError(f"config.json: {key} must be {kind}, but is {value!r}")
    if value > limit:
        raise CheckpointError(f"config.json: {key} must be at most {limit:,}, but is {value:,}")
    return value


def integers(raw: dict[str, Any], key: str) -> list[int]:
    """As `integer`, of a list of integers of 0 or more; empty where there is no such key."""
    values = raw.get(key) or []
    if not isinstance(values, list) or not all(
        type(value) is int and 0 <= value <= MAX_SIZE for value in values
    ):
        raise CheckpointError(
            f"config.json: {key} must be a list of integers of 0 or more, but is {values!r}"
        )
    return values


def number(raw: dict[str, Any], key: str, default: float | None = None, most: float = LARGEST) -> float:
    """As `integer`, of any positive and finite number."""
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        limit = "" if most == LARGEST else f" of at most {most:,}"
        raise CheckpointError(f"config.json: {key} must be a positive number{limit}, but is {value!r}")
    return float(value)


def refuse(raw: dict[str, Any], refused: Iterable[tuple[str, tuple[Any, ...], str]]) -> None:
    """refused: keys, their values that change nothing, and what others ask for. Raises UnsupportedModelError."""
    for key, harmless, what in refused:
        if raw.get(key) not in harmless:
            raise UnsupportedModelError(f"{what} ({key} = {raw[key]!r}) is not supported")
