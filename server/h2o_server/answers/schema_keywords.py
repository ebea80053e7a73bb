"""The keywords of JSON schemas: which of them a grammar follows, and where a schema contains others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

# Of one value by several schemas: each of the first, one of the others.
ALL = "allOf"
BRANCHES = frozenset({"anyOf", "oneOf"})
# Of these a grammar follows nothing, but an answer may have the members that they name.
CONDITIONS = frozenset({"if", "then", "else"})
CONDITIONS_BY_NAME = frozenset({"dependentSchemas", "dependencies"})

FOLLOWED = frozenset(
    {
        *("type", "enum", "const", "$ref", ALL, *BRANCHES),
        *("properties", "patternProperties", "additionalProperties", "required"),
        *("minProperties", "maxProperties"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    }
)
# These restrict no answer.
_ANNOTATIONS = frozenset(
    {
        *("$schema", "$id", "id", "$anchor", "$vocabulary", "$comment", "$defs", "definitions"),
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("contentMediaType", "contentEncoding", "contentSchema"),
        *("discriminator", "externalDocs", "xml"),
    }
)
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)
# Of a pattern: looking ahead or back, borders of words, and references to a group.
_UNFOLLOWED = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?<?[=!]|\\[1-9bBk])")

# Where a schema contains schemas: by name, in a list, or directly.
BY_NAME = frozenset({"$defs", "definitions", "properties", "patternProperties"})
LISTED = frozenset({ALL, *BRANCHES, "prefixItems", "items"})
ITSELF = frozenset({"items", "additionalItems", "additionalProperties"})

# Keywords that mean another thing beside each other.
DEPENDENT = (
    frozenset({"properties", "patternProperties", "additionalProperties"}),
    frozenset({"prefixItems", "items", "additionalItems"}),
    frozenset({"minimum", "exclusiveMinimum"}),
    frozenset({"maximum", "exclusiveMaximum"}),
)

Step = tuple[str | int, ...]


def is_annotation(keyword: str) -> bool:
    return keyword in _ANNOTATIONS or keyword.startswith("x-")


def is_followed(keyword: str, value: Any) -> bool:
    """Whether a grammar enforces it. JSON Schema calls unknown formats an annotation."""
    if keyword == "format":
        return isinstance(value, str) and value in _FORMATS
    if keyword == "pattern":
        return not (isinstance(value, str) and _UNFOLLOWED.search(value))
    return keyword in FOLLOWED


def inside(schema: Any) -> Iterator[tuple[Step, Any]]:
    """The schemas right inside one, each with its place. Definitions come first."""
    if not isinstance(schema, Mapping):
        return
    for key in sorted(schema, key=lambda key: key not in ("$defs", "definitions")):
        value = schema[key]
        if key in BY_NAME and isinstance(value, Mapping):
            yield from (((key, name), member) for name, member in value.items())
        elif key in LISTED and isinstance(value, list):
            yield from (((key, index), member) for index, member in enumerate(value))
        elif key in ITSELF:
            yield (key,), value
