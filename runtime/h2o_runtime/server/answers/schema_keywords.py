"""JSON schema keywords that a grammar cannot enforce. They may be left out, because they only restrict values.

`format` is among them where llguidance does not know its value: JSON Schema calls it an annotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LEFT_OUT = frozenset({"uniqueItems"})
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)

# Where a schema contains schemas: by name, in a list, or directly.
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTED = frozenset({"anyOf", "allOf", "oneOf", "prefixItems", "items"})
_ITSELF = frozenset({"items", "additionalProperties", "unevaluatedProperties"})


def without_left_out(schema: Any) -> tuple[Any, frozenset[str]]:
    """The schema without such keywords, and the keywords that it had. Values that only look like keywords
    stay.
    """
    if not isinstance(schema, Mapping):
        return schema, frozenset()
    found: set[str] = set()

    def inner(value: Any) -> Any:
        schema, names = without_left_out(value)
        found.update(names)
        return schema

    followed: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _LEFT_OUT or (name == "format" and not _is_enforced(value)):
            found.add(name)
        elif name in _BY_NAME and isinstance(value, Mapping):
            followed[name] = {key: inner(member) for key, member in value.items()}
        elif name in _LISTED and isinstance(value, list):
            followed[name] = [inner(member) for member in value]
        else:
            followed[name] = inner(value) if name in _ITSELF else value
    return followed, frozenset(found)


def _is_enforced(value: Any) -> bool:
    return isinstance(value, str) and value in _FORMATS
