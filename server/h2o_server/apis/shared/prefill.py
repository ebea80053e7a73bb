"""The prefill policy in the API: a text or settings, as everywhere else, and what the page's form offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from h2o_runtime.components.options import MOST, Option, options_of, spelled
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy
from h2o_server.apis.shared.types import Strict

_KINDS: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
_MEANING = (
    "How the prompt is read: a text as `h2o-run --prefill` takes it, or the policy's settings by name. Settings "
    "without `policy` change the server's own policy."
)


def _kind(option: Option) -> str:
    return "string" if option.choices else _KINDS[type(option.default)]


def _whole(value: Any) -> Any:
    """JSON has no distinction between 1.0 and 1, and some languages write only the former."""
    if not isinstance(value, dict):
        return value
    return {
        name: int(option) if isinstance(option, float) and option.is_integer() else option
        for name, option in value.items()
    }


def _schema() -> dict[str, Any]:
    """Any policy's settings. A policy's own error is clearer than a schema for each."""
    properties: dict[str, Any] = {"policy": {"enum": [*PREFILL.names, *PREFILL.presets, None]}}
    for kind in PREFILL.kinds:
        for option in options_of(kind):
            known = properties.setdefault(option.name, {"anyOf": []})["anyOf"]
            if (values := {"description": option.meaning, **_values(option)}) not in known:
                known.append(values)
    for name in properties.keys() - {"policy"}:
        properties[name]["anyOf"].append({"type": "null"})
    settings = {"type": "object", "properties": properties, "additionalProperties": {"type": "null"}}
    return {"description": _MEANING, "anyOf": [{"type": "string", "maxLength": 1000}, settings]}


def _values(option: Option) -> dict[str, Any]:
    if option.choices:
        return {"enum": list(option.choices)}
    values: dict[str, Any] = {"type": _kind(option)}
    if _kind(option) in ("integer", "number"):
        values["minimum"] = option.least or 0
    if _kind(option) == "integer":
        values["maximum"] = MOST
    return {"anyOf": [values, {"enum": list(option.words)}]} if option.words else values


Setting: TypeAlias = bool | int | float | Annotated[str, Field(max_length=1000)] | None
Prefill: TypeAlias = Annotated[
    Annotated[str, Field(max_length=1000)] | Annotated[dict[str, Setting], BeforeValidator(_whole)],
    WithJsonSchema(_schema()),
]


class PrefillRequest(Strict):
    prefill: Prefill | None = None


class PrefillDescription(BaseModel):
    """A policy: its settings by name, as a text, and in a few words."""

    prefill: dict[str, Any]
    text: str
    summary: str


def forms(policy: PrefillPolicy[Any], runs: Callable[[PrefillPolicy[Any]], bool]) -> list[dict[str, Any]]:
    """The policies that a person may choose, the server's own first. Of each:

    text      stands for it in a request, before its settings; empty: the server's own
    title     for people
    settings  its settings by name, before a person changes some
    options   as the page shows them: name, label, meaning, type, choices, words, least, most
    """
    found = [("", f"this server's: {policy}", policy)]
    for kind in PREFILL.kinds:
        value = kind()
        if type(value) is not type(policy):
            found.append((spelled(value), _title(value), value))
    for preset in PREFILL.presets:
        value = PREFILL.read(preset)
        found.append((preset, f"{preset}: {value}", value))
    return [
        {
            "text": text,
            "title": title,
            "settings": {PREFILL.field: value.name, **_every_setting(value)},
            "options": [_described(option) for option in options_of(type(value)) if _shown(option)],
        }
        for text, title, value in found
        if value is policy or runs(value)
    ]


def _every_setting(value: PrefillPolicy[Any]) -> dict[str, Any]:
    """Those too that have no effect beside the others: a person may change the others."""
    return {option.name: getattr(value, option.name) for option in options_of(type(value))}


def _title(value: PrefillPolicy[Any]) -> str:
    rule = getattr(value, "score_title", "")
    return f"{value.title}: {rule}" if rule else value.title


def _shown(option: Option) -> bool:
    """Options that never change a result are not for people who want an answer."""
    return option.numeric and not option.fixed


def _described(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "label": option.label,
        "meaning": option.meaning,
        "type": _kind(option),
        "choices": None if option.choices is None else list(option.choices),
        "words": list(option.words),
        "least": option.least,
        "most": MOST if _kind(option) == "integer" else None,
    }
