"""What a grammar follows of a JSON schema: keywords that it cannot enforce are left out, and objects are closed.

All keywords that are left out only restrict values. Generators of schemas write some of them everywhere:
`propertyNames` beside each map, and patterns that look ahead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_LEFT_OUT = frozenset(
    {
        *("uniqueItems", "unevaluatedItems", "contains", "minContains", "maxContains"),
        *("propertyNames", "unevaluatedProperties", "dependentRequired", "dependentSchemas", "dependencies"),
        *("not", "if", "then", "else"),
    }
)
# Of a pattern: looking ahead or back, borders of words, and references to a group.
_UNFOLLOWED = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?<?[=!]|\\[1-9bBk])")
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)

# Where a schema contains schemas: by name, in a list, or directly.
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTED = frozenset({"anyOf", "allOf", "oneOf", "prefixItems", "items"})
_ITSELF = frozenset({"items", "additionalProperties", "unevaluatedProperties"})

# Two of these describe one object together, which neither could close.
_DESCRIBING = frozenset(
    {"properties", "anyOf", "allOf", "oneOf", "$ref", "not", "if", "dependentSchemas", "dependencies"}
)
# These say which other members an object may have, or needs.
_OPENING = frozenset(
    {
        *("additionalProperties", "patternProperties", "unevaluatedProperties"),
        *("propertyNames", "minProperties"),
    }
)


def followed(schema: Any) -> tuple[Any, frozenset[str]]:
    """The schema that a grammar follows, and the keywords that it leaves out. Every answer that fits it fits the
    given one, apart from these keywords.
    """
    return _without_left_out(closed(schema))


def closed(schema: Any) -> Any:
    """The schema, whose objects have no members beside their `properties` unless it says which.

    A grammar cannot count free names: a model could write one again and again, or spell a known one with escapes.
    A schema that combines several is left as it is.
    """
    return schema if any(map(_combines, _all(schema))) else _closed(schema)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if _is_complete(schema) and not _OPENING & schema.keys():
        schema = {**schema, "additionalProperties": False}
    return _changed(schema, _closed)


def _is_complete(schema: Mapping[str, Any]) -> bool:
    """Whether it names members of an object, and among them all that are required."""
    members, required = schema.get("properties"), schema.get("required", [])
    if not (members and isinstance(members, Mapping) and isinstance(required, list)):
        return False
    return all(isinstance(name, str) and name in members for name in required)


def _combines(schema: Mapping[str, Any]) -> bool:
    several = schema.get("allOf")
    return len(_DESCRIBING & schema.keys()) > 1 or (isinstance(several, list) and len(several) > 1)


def _without_left_out(schema: Any) -> tuple[Any, frozenset[str]]:
    """Values that only look like keywords stay."""
    if not isinstance(schema, Mapping):
        return schema, frozenset()
    found = {
        name
        for name, value in schema.items()
        if name in _LEFT_OUT or (name in _ENFORCED and not _ENFORCED[name](value))
    }

    def inner(value: Any) -> Any:
        schema, names = _without_left_out(value)
        found.update(names)
        return schema

    kept = {name: value for name, value in schema.items() if name not in found}
    return _changed(kept, inner), frozenset(found)


def _changed(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A schema with the ones right inside it changed."""
    result = dict(schema)
    for name, value in schema.items():
        if name in _BY_NAME and isinstance(value, Mapping):
            result[name] = {key: change(member) for key, member in value.items()}
        elif name in _LISTED and isinstance(value, list):
            result[name] = [change(member) for member in value]
        elif name in _ITSELF:
            result[name] = change(value)
    return result


def _all(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema and all inside it."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    inside: list[Any] = []
    _changed(schema, inside.append)
    for member in inside:
        yield from _all(member)


def _is_known_format(value: Any) -> bool:
    """JSON Schema calls the others an annotation."""
    return isinstance(value, str) and value in _FORMATS


def _is_regular(pattern: Any) -> bool:
    return not (isinstance(pattern, str) and _UNFOLLOWED.search(pattern))


# Keywords of which some values can be enforced.
_ENFORCED: Mapping[str, Callable[[Any], bool]] = {"format": _is_known_format, "pattern": _is_regular}
