"""What a grammar follows of a JSON schema: keywords that it cannot enforce are left out, and objects are closed.

All keywords that are left out only restrict values. Generators of schemas write some of them everywhere:
`propertyNames` beside each map, and patterns that look ahead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from h2o_runtime.errors import ConfigError
from h2o_server.answers.schema_keywords import (
    ALL,
    BRANCHES,
    BY_NAME,
    CONDITIONS,
    CONDITIONS_BY_NAME,
    DEPENDENT,
    ITSELF,
    LISTED,
    is_annotation,
    is_followed,
)

_MOST = 50_000  # members and schemas of all combinations; the compiler takes no more
_DEEPEST = 20  # references from one to the next that describe one value
_UNEVALUATED = "unevaluatedProperties"
# They are left out, and say which members there are.
_FOR_NAMES = CONDITIONS | CONDITIONS_BY_NAME | {_UNEVALUATED}
_APPLIED = {ALL, *BRANCHES, "enum", "const", "$ref"}  # llguidance applies them to what stands before them


def followed(
    schema: Any, root: Any = None, *, name: str = "the schema", field: str = ""
) -> tuple[Mapping[str, Any], frozenset[str]]:
    """The schema that a grammar follows, and the keywords that it leaves out. Every answer that fits it fits the
    given one, apart from these keywords.

    An object with `properties` has no members but those that its schema names or allows: a grammar cannot count
    free names, so a model could write one again and again, or spell a known one with escapes.

    root: what references refer to; None: the schema. name: what an error calls the schema.

    Raises ConfigError with `field` if it would get too large.
    """
    follower = _Follower(schema if root is None else root)
    try:
        return follower.whole(schema), frozenset(follower.left_out)
    except RecursionError as error:
        raise ConfigError(
            f"{name} combines too many schemas with each other: give a simpler schema", field=field
        ) from error


@dataclass(frozen=True)
class _Members:
    """What schemas say together of an object's members.

    names      those that a schema names, in this order
    patterns   of the names of others
    least      how many there must be
    described  whether a schema has `properties`
    opened     whether a schema allows members without a name or a pattern
    """

    names: Mapping[str, bool] = field(default_factory=dict)
    patterns: Mapping[str, bool] = field(default_factory=dict)
    least: int = 0
    described: bool = False
    opened: bool = False

    @classmethod
    def of(cls, keyword: str, value: Any) -> _Members:
        """What one keyword of a schema says by itself."""
        if keyword == "properties" and isinstance(value, Mapping):
            return cls(dict.fromkeys(value, True), described=True)
        if keyword == "patternProperties" and isinstance(value, Mapping):
            return cls(patterns=dict.fromkeys(value, True))
        if keyword == "required" and isinstance(value, list):
            return cls({name: True for name in value if isinstance(name, str)})
        if keyword == "minProperties" and isinstance(value, int):
            return cls(least=value)
        if keyword in ("enum", "const"):  # their objects are whole
            values = _list(value) if keyword == "enum" else [value]
            return cls(opened=any(isinstance(one, Mapping) for one in values))
        return cls(opened=keyword in ("additionalProperties", _UNEVALUATED) and value is not False)

    @classmethod
    def union(cls, several: Iterable[_Members]) -> _Members:
        names: dict[str, bool] = {}
        patterns: dict[str, bool] = {}
        least, described, opened = 0, False, False
        for one in several:
            names.update(one.names)
            patterns.update(one.patterns)
            least = max(least, one.least)
            described |= one.described
            opened |= one.opened
        return cls(names, patterns, least, described, opened)

    @property
    def complete(self) -> bool:
        """Whether an object can do without other members."""
        return not self.opened and (self.least <= len(self.names) or bool(self.patterns))


class _Follower:
    """Follows one schema. left_out: keywords that it met and left out."""

    def __init__(self, root: Any) -> None:
        self.left_out: set[str] = set()
        self._root = root
        self._names: dict[str, str] = {}  # of definitions, by the text of their schemas
        self._pending: list[tuple[str, Any]] = []
        self._open: set[str] = set()  # schemas around the one that is followed, by their texts
        self._known: dict[str, _Members] = {}  # by reference
        self._size = 0

    def whole(self, schema: Any) -> Mapping[str, Any]:
        result, definitions = self._part(schema, _Members()), {}
        if not isinstance(result, Mapping):
            result = {ALL: [result]}
        while self._pending:
            name, schema = self._pending.pop()
            definitions[name] = self._part(schema, _Members())
        return {**result, "$defs": definitions} if definitions else result

    def _value(self, schema: Any) -> Any:
        """A schema of a value of its own, which may contain itself."""
        if not isinstance(schema, Mapping):
            return schema
        kept = self._kept(schema)
        while kept.keys() == {ALL} and len(parts := _list(kept[ALL])) == 1 and isinstance(parts[0], Mapping):
            kept = self._kept(parts[0])
        if not _refers(kept):
            return self._part(kept, _Members())
        text = json.dumps(kept)
        if kept.keys() == {"$ref"} or text in self._open:
            return self._reference(kept)
        self._open.add(text)
        result = self._part(kept, _Members())
        self._open.remove(text)
        return result

    def _reference(self, schema: Mapping[str, Any]) -> dict[str, str]:
        """A reference to a definition of this schema."""
        text = json.dumps(schema)
        if text not in self._names:
            self._names[text] = f"definition={len(self._names)}"
            self._pending.append((self._names[text], schema))
        return {"$ref": f"#/$defs/{self._names[text]}"}

    def _part(
        self, schema: Any, around: _Members, chain: frozenset[str] = frozenset(), closes: bool = True
    ) -> Any:
        """A schema of a value. around: what others say of its members. chain: the references that led here.

        closes: whether an object is closed here
        """
        self._count(1 + len(around.names))
        merged, chain = self._merged(schema, chain)
        if not isinstance(merged, dict):
            return merged
        if closes and around == _Members() and merged.get(_UNEVALUATED) is False:
            del merged[_UNEVALUATED]
            merged.setdefault("properties", {})  # it closes the object as these do
        says = {key: self._said(key, value) for key, value in merged.items()}
        whole = _Members.union([around, *says.values()])
        plain: dict[str, Any] = {}
        applied: dict[str, Any] = {}
        for key, value in merged.items():
            if key in BRANCHES and isinstance(value, list):
                others = _Members.union([around, *(says[other] for other in says if other != key)])
                alone = others == _Members()
                applied[key] = [
                    self._value(one) if alone else self._part(one, others, chain) for one in value
                ]
            elif key == ALL and isinstance(value, list):
                applied[key] = [self._part(one, whole, chain, closes=False) for one in value]
            elif key in _FOR_NAMES:
                self.left_out.add(key)
            else:
                (applied if key in _APPLIED else plain)[key] = self._inner(key, value)
        described = around.described or any(says[key].described for key in says if key not in BRANCHES)
        if closes and described and whole.complete:
            plain = _closed(plain, whole)
        return {**plain, **applied}

    def _inner(self, key: str, value: Any) -> Any:
        """A keyword's value, with the schemas of other values inside it."""
        if key in BY_NAME and isinstance(value, Mapping):
            return {name: self._value(member) for name, member in value.items()}
        if key in LISTED and isinstance(value, list):
            return [self._value(member) for member in value]
        return self._value(value) if key in ITSELF else value

    def _kept(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A copy with the keywords that mean something here."""
        kept: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _FOR_NAMES or is_followed(key, value):
                kept[key] = copy(value)
            elif not is_annotation(key):
                self.left_out.add(key)
        return kept

    def _merged(self, schema: Any, chain: frozenset[str]) -> tuple[Any, frozenset[str]]:
        """The same with what `$ref` and `allOf` say in its own keywords, as far as possible.

        And the chain with the references that it had.
        """
        if not isinstance(schema, Mapping):
            return schema, chain
        merged = self._kept(schema)
        parts = merged.pop(ALL) if isinstance(merged.get(ALL), list) else []
        reference = merged.get("$ref")
        if (target := self._target(reference)) is not None:
            again = reference in chain or len(chain) == _DEEPEST
            if again and not parts and len(merged) == 1:
                return self._reference(merged), chain
            del merged["$ref"]
            parts = [{"$ref": reference} if again else target, *parts]
            chain |= {str(reference)}
        if not merged and len(parts) == 1:
            return self._merged(parts[0], chain)
        rest = []
        for part in parts:
            part, chain = self._merged(part, chain)
            left = self._moved(part, merged) if isinstance(part, Mapping) else part
            if left is not True and left != {}:
                rest.append(left)
        return ({**merged, ALL: rest} if rest else merged), chain

    def _moved(self, part: Mapping[str, Any], into: dict[str, Any]) -> Mapping[str, Any]:
        """Move what can be moved of one schema into another → the rest."""
        self._count(len(part))
        for group in DEPENDENT:
            mine, there = group & part.keys(), group & into.keys()
            if mine and there and len(mine | there) > 1:
                return part
        rest: dict[str, Any] = {}
        for key, value in part.items():
            if key not in into and key != _UNEVALUATED:
                into[key] = value
            elif key == "properties" and isinstance(value, dict) and isinstance(into[key], dict):
                for name, member in value.items():
                    into[key][name] = {ALL: [into[key][name], member]} if name in into[key] else member
            elif key == "required" and isinstance(value, list) and isinstance(into[key], list):
                into[key] += value
            elif key != "type" or value != into[key]:
                rest[key] = value
        return rest

    def _target(self, reference: Any) -> Any:
        """What it refers to; None if that is nothing here."""
        if not isinstance(reference, str) or not re.match("#(/|$)", reference):
            return None
        found = self._root
        for step in reference[1:].split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                found = found.get(name) if isinstance(found, Mapping) else None
        return found

    def _said(self, key: str, value: Any) -> _Members:
        """What a keyword says, with the schemas inside it that describe the same object."""
        if key in (ALL, *BRANCHES):
            return _Members.union(map(self._members, _list(value)))
        if key == "$ref" and isinstance(value, str):
            if value not in self._known:
                self._known[value] = _Members()  # for a schema of itself
                self._known[value] = self._members(self._target(value))
            return self._known[value]
        if key in CONDITIONS or key in CONDITIONS_BY_NAME:
            schemas = [value] if key in CONDITIONS or not isinstance(value, Mapping) else value.values()
            named = _Members.union(map(self._members, schemas))
            return _Members(named.names, named.patterns)
        return _Members.of(key, value)

    def _members(self, schema: Any) -> _Members:
        keywords = schema if isinstance(schema, Mapping) else {}
        return _Members.union(self._said(key, value) for key, value in keywords.items())

    def _count(self, members: int) -> None:
        self._size += members
        if self._size > _MOST:
            raise RecursionError("more members than a schema has without endless combinations")


def _closed(schema: Mapping[str, Any], members: _Members) -> dict[str, Any]:
    """An object without other members than these. Names beside `additionalProperties` alone count for it."""
    keys = ("properties", "patternProperties")
    own = {key: schema.get(key, {}) for key in keys}
    if "additionalProperties" in schema or not all(isinstance(value, Mapping) for value in own.values()):
        return dict(schema)
    closing: dict[str, Any] = {}
    for key, named in zip(keys, (members.names, members.patterns), strict=True):
        if described := {**own[key], **{name: True for name in named if name not in own[key]}}:
            closing[key] = described
    return {**schema, **closing, "additionalProperties": False}


def _refers(schema: Any) -> bool:
    """Whether a reference describes the same value."""
    if not isinstance(schema, Mapping):
        return False
    return "$ref" in schema or any(_refers(one) for key in (ALL, *BRANCHES) for one in _list(schema.get(key)))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
