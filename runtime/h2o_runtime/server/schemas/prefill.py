"""The prefill configuration in the API, generated from the policies' fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from h2o_runtime.components.options import MOST, Option
from h2o_runtime.config.quality import MEANING
from h2o_runtime.names import Quality
from h2o_runtime.policies.prefill import PREFILL
from h2o_runtime.server.schemas.base import WHOLE, Strict

_KINDS: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _kind(option: Option) -> str:
    return "string" if option.choices else _KINDS[type(option.default)]


def _type(option: Option) -> Any:
    """The range of a request's values. It is wider than the policies', because a policy's own error is
    clearer.
    """
    if option.choices:
        return Literal[option.choices]
    least = min(option.least or 0, 0)
    number = {
        "boolean": bool,
        "integer": Annotated[int, Field(ge=least, le=MOST), WHOLE],
        "number": Annotated[float, Field(ge=least, allow_inf_nan=False)],
        "string": Annotated[str, Field(max_length=1000)],
    }[_kind(option)]
    return number | Literal[option.words] if option.words else number


def _fields() -> dict[str, Any]:
    return {
        option.name: (_type(option) | None, Field(None, description=option.meaning))
        for option in PREFILL.options
    }


class Prefill(create_model("_PrefillFields", __base__=Strict, **_fields())):  # type: ignore[misc]
    """Overrides of the server's prefill configuration; see the flags of h2o-run."""

    quality: Quality | None = Field(None, description=MEANING)


class PrefillRequest(Strict):
    prefill: Prefill | None = None


class PrefillDescription(BaseModel):
    """A whole configuration, and its short description."""

    prefill: dict[str, Any]
    summary: str


def prefill_options() -> list[dict[str, Any]]:
    """The options as the page shows them, in their order.

    Of each: name, label, meaning, type, default, choices, words, least, most, numeric, policies.

    choices   labels by value, None where any value of the type will do
    words     values that stand beside numbers
    policies  those that have the option
    numeric   false where it never changes a result
    """
    return [
        {
            "name": option.name,
            "label": option.label,
            "meaning": option.meaning,
            "type": _kind(option),
            "default": option.default,
            "choices": _choices(option),
            "words": list(option.words),
            "least": option.least,
            "most": MOST if _kind(option) == "integer" else None,
            "numeric": option.numeric,
            "policies": list(PREFILL.having(option)),
        }
        for option in PREFILL.options
    ]


def _choices(option: Option) -> dict[str, str] | None:
    if option.name == "policy":
        return {policy.name: policy.title for policy in PREFILL}
    return None if option.choices is None else {choice: choice for choice in option.choices}
