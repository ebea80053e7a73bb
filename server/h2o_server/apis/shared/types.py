"""Types that requests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from h2o_runtime.components.options import MOST


def is_text(value: Any) -> bool:
    """Whether all text in a JSON value is made of characters: half of a surrogate pair is none."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def exactly(kind: type) -> Callable[[Any], Any]:
    """A check for this exact type: literals compare with ==, and in Python 1 == True."""

    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"Input should be {'a boolean' if kind is bool else 'an integer'}")
        return value

    return check


def _whole(value: Any) -> Any:
    """JSON has no distinction between 1.0 and 1, and some languages write only the former."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _medium(value: Any) -> str | None:
    """What a part of a content is that no model here reads; None for a text."""
    kind = value.get("type") if isinstance(value, dict) else None
    return next((name for word, name in _MEDIA.items() if isinstance(kind, str) and word in kind), None)


def _text_alone(value: Any) -> Any:
    """Content that clients send and no model here reads."""
    if (found := _medium(value)) is not None:
        raise ValueError(f"{found} are not supported: this server reads text alone")
    return value


# What the types of such content contain, as in image_url or input_file.
_MEDIA = {
    "image": "images",
    "audio": "sounds",
    "video": "videos",
    "document": "documents",
    "file": "files",
}
TEXT_ALONE = BeforeValidator(_text_alone)


def in_words(text_type: str) -> BeforeValidator:
    """A sentence in the place of what a tool gives beside texts: the agent did not choose it, and goes on.

    text_type: of the text that the sentence becomes
    """

    def replace(value: Any) -> Any:
        if (found := _medium(value)) is not None:
            return {"type": text_type, "text": _UNSEEN.format(found)}
        if isinstance(value, dict) and value.get("type") == "tool_reference":  # of a search among tools
            return {"type": text_type, "text": _FOUND.format(value.get("tool_name"))}
        return value

    return BeforeValidator(replace)


_UNSEEN = "[The tool gave {} here, which cannot be shown: this model reads text alone.]"
_FOUND = "[The tool {} can be called now.]"

# The only value that is supported.
One = Annotated[Literal[1], BeforeValidator(exactly(int)), BeforeValidator(_whole)]
No = Annotated[Literal[False], BeforeValidator(exactly(bool))]

WHOLE = BeforeValidator(_whole)
Count = Annotated[int, Field(ge=0, le=MOST), WHOLE]
Limit = Annotated[int, Field(ge=-1, le=MOST, description="-1: as many as the context holds."), WHOLE]
Real = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]


class Strict(BaseModel):
    """No coercion, and no unknown parameter: unsupported parameters are refused, not ignored.

    Except null, which clients write for unset parameters.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        protected_namespaces=(),
        json_schema_extra={"additionalProperties": {"type": "null"}},
    )

    @model_validator(mode="before")
    @classmethod
    def _without_unknown_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        known = json_names(cls)
        return {name: given for name, given in value.items() if given is not None or name in known}


def json_names(model: type[BaseModel]) -> set[str]:
    """The names of a model's fields in JSON."""
    return {field.alias or name for name, field in model.model_fields.items()}
