"""What only steers somebody else's service: requests may have it, nothing here reads it, and the client is told.

Fields have the mark `LEFT_ALONE` beside their type. A part of a list that is left alone as a whole is a `Foreign`.
So are the unknown members of a `HistoryPart`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class _Mark:
    """The value has no effect on the answer."""


LEFT_ALONE = _Mark()
_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")  # which a header can have
Ignored = Annotated[Any, LEFT_ALONE]  # of any type: what it may be is not ours to say


class Foreign(BaseModel):
    """A part that means something to another service alone; its other members may be anything."""

    model_config = ConfigDict(strict=True)

    type: Annotated[str, Field(pattern=f"^{_NAME.pattern}$")]


def is_left_alone(field: FieldInfo) -> bool:
    return LEFT_ALONE in field.metadata


def left_alone(body: BaseModel) -> frozenset[str]:
    """What the request has and nothing reads: fields as in "text.verbosity", parts as in "tools[web_search]"."""
    return frozenset(_left_alone(body, ""))


def _left_alone(model: BaseModel, prefix: str) -> Iterator[str]:
    for name in model.model_extra or ():
        yield prefix + (name if _NAME.fullmatch(name) else "?")
    for name, field in type(model).model_fields.items():
        value, path = getattr(model, name), prefix + (field.alias or name)
        if value is None:
            continue
        if is_left_alone(field):
            yield path
            continue
        for member in value if isinstance(value, list) else (value,):
            if isinstance(member, Foreign):
                yield f"{path}[{member.type}]"
            elif isinstance(member, BaseModel):
                yield from _left_alone(member, f"{path}.")
