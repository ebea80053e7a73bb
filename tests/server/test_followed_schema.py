"""What grammars follow of JSON schemas: which members an object may have, and which keywords are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import EXAMPLE

from h2o_runtime.errors import ConfigError
from h2o_runtime.text import Tokenizer
from h2o_server.answers.followed_schema import followed
from h2o_server.answers.grammar import GrammarCompiler

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
NAMES = {"properties": {"a": TEXT, "b": TEXT}, "required": ["a"]}
BASE = {"type": "object", "properties": {"base": NUMBER}, "required": ["base"]}


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(EXAMPLE / "tokenizer.json", 4096, [1])
    yield made
    made.close()


def fits(compiler: GrammarCompiler, schema: dict[str, Any], text: str) -> bool:
    """Whether an answer in a grammar of the schema may be the text."""
    grammar = compiler.json_schema(followed(schema)[0], field="schema")
    try:
        for token in Tokenizer.load(EXAMPLE).encode(text):
            if not grammar.allowed()[token]:
                return False
            grammar.accept(token)
        return bool(grammar.allowed()[1])
    finally:
        grammar.close()


def test_no_member_comes_twice(compiler: GrammarCompiler) -> None:
    schema = {"type": "object", **NAMES}
    assert fits(compiler, schema, '{"a": "x", "b": "y"}')
    for more in ('"a": "y"', '"\\u0061": "y"', '"c": "y", "c": "z"'):
        assert not fits(compiler, schema, f'{{"a": "x", {more}}}')
    nested = {"type": "array", "items": {"$ref": "#/$defs/one"}, "$defs": {"one": schema}}
    assert fits(compiler, nested, '[{"a": "x"}]')
    assert not fits(compiler, nested, '[{"a": "x", "c": "y"}]')


# Schemas, an answer that fits, and others that do not.
CLOSED: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "properties beside allOf": (
        {**NAMES, "allOf": [{"properties": {"n": NUMBER}, "required": ["n"]}]},
        '{"a": "x", "n": 1}',
        ('{"a": "x"}', '{"a": "x", "n": 1, "c": 1}', '{"a": "x", "n": 1, "n": 1}', '{"a": "x", "n": "x"}'),
    ),
    "one name in two schemas": (
        {"properties": {"n": NUMBER}, "allOf": [{"properties": {"n": {"minimum": 5}}}]},
        '{"n": 7}',
        ('{"n": 1}', '{"n": 7, "n": 8}', '{"n": "x"}'),
    ),
    "a reference beside properties": (
        {"$ref": "#/$defs/of~1it", "properties": {"a": TEXT}, "$defs": {"of/it": BASE}},
        '{"a": "x", "base": 1}',
        ('{"base": 1, "c": 1}', '{"a": "x"}'),
    ),
    "properties beside anyOf": (
        {**NAMES, "anyOf": [{"properties": {"n": NUMBER}, "required": ["n"]}, {"required": ["b"]}]},
        '{"a": "x", "b": "y"}',
        ('{"a": "x"}', '{"a": "x", "b": "y", "c": 1}', '{"a": "x", "b": "y", "n": "not a number"}'),
    ),
    "patterns of names": (
        {**NAMES, "allOf": [{"patternProperties": {"^c": NUMBER}}]},
        '{"a": "x", "c1": 1}',
        ('{"a": "x", "d": 1}', '{"a": "x", "c1": "x"}'),
    ),
    "unevaluatedProperties of a part, for which the others are too many": (
        {"properties": {"a": TEXT}, "allOf": [{"properties": {"n": NUMBER}, "additionalProperties": False}]},
        '{"n": 1}',
        ('{"a": "x"}', '{"c": 1}'),
    ),
    "two trees at once": (
        {
            "allOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}],
            "$defs": {
                "one": {"properties": {"next": {"$ref": "#/$defs/one"}, "a": TEXT}},
                "two": {"properties": {"next": {"$ref": "#/$defs/two"}, "n": NUMBER}},
            },
        },
        '{"next": {"next": {"a": "x", "n": 1}, "n": 2}}',
        ('{"next": {"c": 1}}', '{"next": {"next": {"n": "x"}}}'),
    ),
}


@pytest.mark.parametrize("case", CLOSED)
def test_combined_objects_have_the_members_that_their_schemas_name(
    compiler: GrammarCompiler, case: str
) -> None:
    schema, right, wrong = CLOSED[case]
    schema = {"type": "object", **schema}
    assert fits(compiler, schema, right)
    for text in wrong:
        assert not fits(compiler, schema, text), text


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"additionalProperties": True}, '{"a": "x", "c": 1}'),
        ({"patternProperties": {"^c": {"type": "integer"}}}, '{"a": "x", "c": 1}'),
        ({"minProperties": 3}, '{"a": "x", "b": "y", "c": 1}'),
        ({"anyOf": [{"required": ["a"]}, {"additionalProperties": True}]}, '{"a": "x", "c": 1}'),
        ({"enum": [{"a": "x", "c": 1}]}, '{"a": "x", "c": 1}'),
    ],
)
def test_a_schema_that_wants_other_members_has_them(
    compiler: GrammarCompiler, more: dict[str, Any], text: str
) -> None:
    if "minProperties" in more:
        more = {**more, "required": ["a", "b"]}  # no grammar counts members that may be missing
    assert fits(compiler, {"type": "object", **NAMES, **more}, text)


@pytest.mark.parametrize("odd", [{"required": [{}]}, {"properties": 1}, {"$ref": {}}, {"allOf": [1]}])
def test_a_malformed_schema_is_left_to_the_compiler(compiler: GrammarCompiler, odd: dict[str, Any]) -> None:
    schema = {"type": "object", "allOf": [{"properties": {"n": NUMBER}}, {**NAMES, **odd}]}
    with pytest.raises(ConfigError):
        compiler.json_schema(followed(schema)[0], field="schema")


@pytest.mark.parametrize("any_value", [{"allOf": [True]}, {"$ref": "#/$defs/a", "$defs": {"a": True}}, {}])
def test_a_schema_of_any_value(compiler: GrammarCompiler, any_value: dict[str, Any]) -> None:
    assert fits(compiler, any_value, '{"c": [1]}')


def test_a_schema_of_too_many_combinations_is_refused() -> None:
    double = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(18)}
    schema = {"properties": {"a": {}}, "$ref": "#/$defs/d0", "$defs": double | {"d18": {"properties": {}}}}
    with pytest.raises(ConfigError, match="here combines too many schemas") as caught:
        followed(schema, name="here", field="x")
    assert caught.value.field == "x"


def test_a_long_chain_of_references_is_followed(compiler: GrammarCompiler) -> None:
    chain = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"title": "x"}]} for n in range(500)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d500": BASE}}
    assert fits(compiler, schema, '{"base": 1}')
    assert not fits(compiler, schema, '{"base": 1, "c": 1}')


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"type": "string", "maxlength": 2}, {"maxlength"}),
        ({"type": "object", "propertys": {"a": TEXT}, "not": {}}, {"propertys", "not"}),
        ({"propertyNames": {}, "dependentRequired": {"no": ["a"]}}, {"propertyNames", "dependentRequired"}),
        *(
            ({"type": "string", "pattern": one}, {"pattern"})
            for one in (r"^(?!foo).*$", r"\bfoo\b", r"(a|b)\1")
        ),
        *(({"type": "string", "format": one}, {"format"}) for one in ("path", "int32", 5, None)),
        ({"properties": {"maxlength": {"type": "string", "nullable": True}}}, {"nullable"}),
        (
            {"allOf": [{"if": {}, "then": {}}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"typo": 1}}},
            {"if", "then", "typo"},
        ),
        (
            {
                "type": "string",
                "title": "t",
                "description": "d",
                "default": "x",
                "examples": [],
                "x-order": 1,
            },
            set(),
        ),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", "deprecated": True}, set()),
        ({"oneOf": [TEXT], "discriminator": {"propertyName": "kind"}}, set()),
        ({"properties": {}, "unevaluatedProperties": False}, set()),
        ({"allOf": [{"unevaluatedProperties": False}, NAMES]}, {"unevaluatedProperties"}),
    ],
)
def test_keywords_that_no_grammar_follows_are_told(schema: dict[str, Any], names: set[str]) -> None:
    assert followed(schema)[1] == names
