"""JSON as clients read it: Python's own reader also takes NaN and Infinity."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def parsed(text: str) -> Any:
    """A JSON value, in which whole numbers are texts, as they may have any length. Raises ValueError."""
    try:
        return json.loads(text, parse_int=str, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def as_json(word: str, otherwise: Any) -> str:
    """The word itself if it is a JSON value, else `otherwise` as JSON."""
    try:
        parsed(word)
    except ValueError:
        return json.dumps(otherwise, ensure_ascii=False)
    return word


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
