"""Random JSON schemas of all kinds that clients combine, and what an answer must fit beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

Schema = dict[str, Any]
NAMES = ("a", "b", "c", "d")
PLACES = ("allOf", "anyOf", "oneOf")  # of schemas that describe the same value
UNEVALUATED = "unevaluatedProperties"


def random_schema(seed: int) -> Schema:
    dice = Random(seed)
    schema = _object(dice, 2) if dice.random() < 0.8 else _value(dice, 3)
    schema["$defs"] = {
        "one": _list(dice, 1),
        "two": _scalar(dice),
        "base": {"type": "object", "properties": _properties(dice, 0, NAMES[:2])},
        "tree": {
            "type": "object",
            "properties": {"t": _scalar(dice), "next": {"$ref": "#/$defs/tree"}},
            "required": ["t"],
        },
    }
    return schema


def _value(dice: Random, depth: int) -> Schema:
    kinds = [_scalar] if depth == 0 else [_scalar, _list, _map, _choice, _reference, _deep, _deep, _deep]
    kind = dice.choice(kinds)
    return kind(dice) if kind is _scalar else kind(dice, depth - 1)


def _scalar(dice: Random) -> Schema:
    low = dice.randint(-20, 20)
    return dice.choice(
        [
            {"type": "string", "maxLength": dice.randint(0, 3)},
            {"type": "string", "pattern": dice.choice(["^[a-c]{1,3}$", "^x[0-9]?$", "é|東"]), "maxLength": 4},
            {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 300)},
            {"type": "integer", "minimum": 0, "exclusiveMaximum": 100, "multipleOf": dice.randint(1, 9)},
            {"type": ["boolean", "null"]},
            {"enum": dice.sample(["x", "é", 1, 2.5, None, False, [1], {"k": 0}], 3)},
            {"const": dice.choice(["q", 7, {"k": ["v"]}, None])},
            {"type": "string", "format": dice.choice(["date", "ipv4", "uuid"]), "title": "a title"},
        ]
    )


def _list(dice: Random, depth: int) -> Schema:
    if dice.random() < 0.3:
        return {
            "type": "array",
            "prefixItems": [_value(dice, depth) for _ in range(2)],
            "items": False,
            "minItems": dice.randint(0, 2),
        }
    return {"type": "array", "items": _value(dice, depth), "maxItems": dice.randint(0, 2)}


def _map(dice: Random, depth: int) -> Schema:
    some = {"maxProperties": 2, "minProperties": dice.randint(0, 1)}
    if dice.random() < 0.5:
        return {"type": "object", "additionalProperties": _value(dice, depth), **some}
    patterns = {"^k[0-9]$": _value(dice, depth)}
    return {"type": "object", "patternProperties": patterns, "additionalProperties": False, **some}


def _choice(dice: Random, depth: int) -> Schema:
    return {dice.choice(["anyOf", "oneOf"]): [_value(dice, depth) for _ in range(dice.randint(1, 3))]}


def _reference(dice: Random, depth: int) -> Schema:
    reference = {"$ref": f"#/$defs/{dice.choice(['one', 'two', 'base', 'tree'])}"} if depth else _scalar(dice)
    return dice.choice([reference, {"allOf": [reference], "description": "one alone"}])


def _deep(dice: Random, depth: int) -> Schema:
    return _object(dice, depth)


def _properties(dice: Random, depth: int, names: tuple[str, ...] = NAMES) -> Schema:
    return {
        name: _value(dice, max(depth, 0)) for name in dice.sample(names, dice.randint(0, min(3, len(names))))
    }


def _object(dice: Random, depth: int) -> Schema:
    """An object, alone or by several schemas together."""
    schema = {"type": "object", "properties": _properties(dice, depth)}
    schema["required"] = [name for name in schema["properties"] if dice.random() < 0.7]
    if dice.random() < 0.1:
        schema["required"].append("unnamed")
    if not schema["required"] and dice.random() < 0.5:
        del schema["required"]
    more = dice.choice(
        ["", "", "closed", "all", "all", "branches", "branches", "if", "base", "least", "tight"]
    )
    if more == "closed":
        schema[dice.choice(["additionalProperties", "unevaluatedProperties"])] = False
    elif more == "all":
        schema["allOf"] = [_part(dice, depth - 1) for _ in range(dice.randint(1, 3))]
    elif more == "branches":
        for place in dice.sample(PLACES[1:], dice.randint(1, 2)):
            digits = "12" if place == "anyOf" else "34"
            schema[place] = [_part(dice, depth - 1, digits) for _ in range(dice.randint(1, 3))]
    elif more == "if":
        then = {"properties": {"then": {"type": "boolean"}}, "required": ["then"]}
        schema["allOf"] = [{"if": {"required": ["a"]}, "then": then}]
    elif more == "base":
        schema[dice.choice(["$ref", "allOf"])] = "#/$defs/base"
        if "allOf" in schema:
            schema["allOf"] = [{"$ref": schema["allOf"]}, _part(dice, depth - 1)]
    elif more == "least":
        schema["minProperties"] = dice.randint(1, 2)
    elif more == "tight":  # which may leave no answer
        schema["allOf"] = [{"additionalProperties": False, "properties": _properties(dice, 0)}]
    return schema


def _part(dice: Random, depth: int, digits: str = "12") -> Schema:
    """One of the schemas that describe an object together. digits: of its names; types of one name seldom agree."""
    if dice.random() < 0.2:
        return {"required": [dice.choice(NAMES)]}
    names = tuple(f"{name}{dice.choice(digits)}" for name in NAMES)
    part: Schema = {"properties": _properties(dice, depth, names)}
    part["required"] = [name for name in part["properties"] if dice.random() < 0.5]
    if dice.random() < 0.2:
        part[dice.choice(PLACES)] = [_part(dice, depth - 1, digits)]
    return part


def exact(schema: Any, root: Schema | None = None) -> Any:
    """The same for a validator: closed as the docs say it, and without what they leave out."""
    if not isinstance(schema, dict) or schema.keys() == {"$ref"}:
        return schema
    root = root or schema
    alone = len(schema.keys() - {"$defs", "description"}) == 1
    result = _inside(schema, root, exact if alone and "allOf" not in schema else _inside)
    if "$defs" in schema:
        result["$defs"] |= {f"open-{name}": _inside(part, root) for name, part in schema["$defs"].items()}
    parts = list(_same_object(schema, root))
    if any("properties" in part for part, how in parts if how == "always") and not any(map(_opens, parts)):
        named = {name for part, _ in parts for name in part.get("required", ())}
        named |= {name for part, how in parts if how == "if" for name in part.get("properties", ())}
        result["allOf"] = [*result.get("allOf", ()), {"properties": dict.fromkeys(named, True)}]
        names = named.union(*(part.get("properties", ()) for part, _ in parts))
        if max(part.get("minProperties", 0) for part, _ in parts) <= len(names):
            result["unevaluatedProperties"] = False
    return result


def _inside(schema: Any, root: Schema, branch: Callable[[Any, Schema], Any] | None = None) -> Any:
    """Other values are exact; schemas of the same value stay open, and of `oneOf` several may fit."""
    if not isinstance(schema, dict):
        return schema
    result = {key: value for key, value in schema.items() if key not in ("if", "then", *PLACES, UNEVALUATED)}
    for key in ("properties", "patternProperties", "$defs"):
        if key in schema:
            result[key] = {name: exact(value, root) for name, value in schema[key].items()}
    for key in ("items", "additionalProperties"):
        if key in schema:
            result[key] = exact(schema[key], root)
    if "prefixItems" in schema:
        result["prefixItems"] = [exact(value, root) for value in schema["prefixItems"]]
    if "$ref" in schema:
        result["$ref"] = schema["$ref"].replace("$defs/", "$defs/open-")
    parts = [_inside(part, root) for part in schema.get("allOf", ())]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            parts.append({"anyOf": [(branch or _inside)(part, root) for part in schema[key]]})
    return result | ({"allOf": parts} if parts else {})


def _same_object(schema: Any, root: Schema, how: str = "always") -> Iterator[tuple[Schema, str]]:
    """The schemas that describe one value together, and whether they hold always, as a branch, or under a
    condition.
    """
    if not isinstance(schema, dict):
        return
    yield schema, how
    parts = [(part, how) for part in schema.get("allOf", ())]
    parts += [
        (part, "branch" if how == "always" else how) for key in PLACES[1:] for part in schema.get(key, ())
    ]
    parts += [(schema[key], "if") for key in ("if", "then") if key in schema]
    if "$ref" in schema:
        parts.append((root["$defs"][schema["$ref"].rpartition("/")[2]], how))
    for part, kind in parts:
        yield from _same_object(part, root, kind)


def _opens(part: tuple[Schema, str]) -> bool:
    schema, _ = part
    values = [schema.get("const"), *schema.get("enum", ())]
    return schema.get("additionalProperties", False) is not False or any(
        isinstance(one, dict) for one in values
    )


def has_maps(schema: Any) -> bool:
    """Whether some object may have members without a name in the schema."""
    if isinstance(schema, list):
        return any(map(has_maps, schema))
    if not isinstance(schema, dict):
        return False
    free = schema.get("additionalProperties", False) is not False or "patternProperties" in schema
    return free or any(map(has_maps, schema.values()))
