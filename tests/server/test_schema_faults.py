"""A refused schema: the message says which part of it is wrong, why, and what to change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import EXAMPLE
from tests.server.running import Server, error_of

from h2o_runtime.answers.dialects import DIALECTS
from h2o_runtime.answers.dialects.speech import Speech
from h2o_runtime.answers.request import Prompt
from h2o_server.answers.constraint import AnswerConstraint, CallGrammar
from h2o_server.answers.grammar import GrammarCompiler, UnfollowableError
from h2o_server.answers.reader import answer_constraint
from h2o_server.answers.schema_faults import located
from h2o_server.apis.chat.schema import ChatRequest

TEXT, IMPOSSIBLE = {"type": "string"}, {"type": "integer", "minimum": 5, "maximum": 2}
WHY = "minimum (5) is greater than maximum (2): change or leave out minimum 5 or maximum 2"
DEEP = {"type": "object", "properties": {"deep": IMPOSSIBLE}, "required": ["deep"]}


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(EXAMPLE / "tokenizer.json", 4096, [1])
    yield made
    made.close()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (IMPOSSIBLE, f": {WHY}"),
        (DEEP, f".properties.deep: {WHY}"),
        ({"type": "array", "items": DEEP, "minItems": 1}, f".items.properties.deep: {WHY}"),
        ({"type": "array", "prefixItems": [TEXT, DEEP], "minItems": 2}, f".prefixItems[1].properties.deep: {WHY}"),
        ({"$ref": "#/$defs/a", "$defs": {"a": DEEP}}, f".$defs.a.properties.deep: {WHY}"),
        # An impossible member that may be missing is no fault; a pattern that is none is one.
        (
            {"type": "object", "properties": {"may": IMPOSSIBLE, "deep": {"type": "string", "pattern": "(["}}},
            '.properties.deep: regex parse error: unclosed character class: change or leave out pattern "(["',
        ),
        (
            {"type": "string", "pattern": "^a", "maxLength": 0},
            ': no text fits it: change or leave out pattern "^a" or maxLength 0',
        ),
        (
            {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2},
            ': min/maxProperties only supported when all keys listed in "properties" are required: '
            "change or leave out properties or minProperties 2",
        ),
        ({"type": "object", "properties": {"a": {"type": "person"}}}, '.properties.a: Invalid type: person: '),
        ({"anyOf": [TEXT, {"enum": 5}]}, ".anyOf[1]: enum must be an array: change or leave out enum 5"),
        ({"allOf": [TEXT, {"type": "integer"}]}, ": incompatible types: change or leave out allOf"),
        ({"enum": []}, ": it allows no value: change or leave out enum"),
        ({"properties": {"a": 5}}, ".properties.a: schema must be an object or boolean: change or leave it out"),
        (
            {"type": "object", "additionalProperties": False, "properties": {}, "required": ["b"]},
            ": required property 'b' is unsatisfiable: ",
        ),
        (
            {"items": {"$ref": "#/$defs/nowhere"}},
            ".items: Pointer '/$defs/nowhere' does not exist: change or leave out $ref \"#/$defs/nowhere\"",
        ),
        ({"$ref": "#"}, ': no answer fits it: it consists of itself: change or leave out $ref "#"'),
        (
            {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a", "anyOf": [TEXT]}}},
            ".$defs.a: no answer fits it: it consists of itself: change or leave out $ref",
        ),
        # Two faults: the message has one of them.
        ({"type": "object", "properties": {"a": DEEP, "b": DEEP}, "required": ["a", "b"]}, ".properties.b."),
    ],
)  # fmt: skip
def test_a_fault_has_a_place_a_reason_and_a_remedy(
    compiler: GrammarCompiler, schema: dict[str, Any], message: str
) -> None:
    wanted = AnswerConstraint.of_schema(schema, "here")
    with pytest.raises(UnfollowableError) as caught:
        compiler.json_schema(wanted.grammar, field="here")
    error = located(caught.value, wanted, lambda grammar: compiler.json_schema(grammar, field="here"))
    assert str(error).startswith(f"here{message}")
    assert "\n" not in str(error)
    assert error.field == "here"


def test_a_fault_among_many_is_found(compiler: GrammarCompiler) -> None:
    many = {f"m{n}": {"type": "object", "properties": {f"p{m}": TEXT for m in range(10)}} for n in range(60)}
    schema = {"type": "object", "properties": many | {"last": DEEP}, "required": ["last"]}
    wanted = AnswerConstraint.of_schema(schema, "here")
    with pytest.raises(UnfollowableError) as caught:
        compiler.json_schema(wanted.grammar, field="here")
    error = located(caught.value, wanted, lambda grammar: compiler.json_schema(grammar, field="here"))
    assert str(error) == f"here.properties.last.properties.deep: {WHY}"


def function(name: str, parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


GOOD = {"type": "object", "properties": {"a": {"type": "boolean"}}}


@pytest.mark.parametrize(
    ("dialect", "choice"),
    [
        ("hermes", "required"),
        ("hermes", "auto"),
        ("qwen-coder", "required"),
        ("lfm", "auto"),
        ("gemma4", "required"),
    ],
)
def test_a_function_is_named_in_any_dialect(compiler: GrammarCompiler, dialect: str, choice: str) -> None:
    """Also one of a dialect whose grammar has a part for each parameter."""
    tools = [{"type": "web_search"}, function("good", GOOD), function("wrong", DEEP, strict=True)]
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice}
    speech = Speech(DIALECTS[dialect](), False, {})
    wanted = answer_constraint(ChatRequest.model_validate(asked), Prompt((1,), "x"), speech)
    assert wanted is not None

    def compiled(grammar: Any) -> Any:
        if isinstance(grammar, CallGrammar):
            return compiler.lark(grammar.text, field="tools")
        return compiler.json_schema(grammar, field="tools")

    with pytest.raises(UnfollowableError) as caught:
        compiled(wanted.grammar)
    assert (
        str(located(caught.value, wanted, compiled)) == f"tools[2] (wrong): parameters.properties.deep: {WHY}"
    )


def test_in_the_words_of_each_api(server: Server) -> None:
    schema = {"type": "object", "properties": {"deep": {"type": "string", "pattern": "(["}}}
    where = 'properties.deep: regex parse error: unclosed character class: change or leave out pattern "(["'
    shape = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    error = error_of(server.chat(response_format=shape), 400)
    assert error["message"] == f"response_format.json_schema.schema.{where}"
    assert error["param"] == "response_format.json_schema.schema"
    shape = {"format": {"type": "json_schema", "name": "a", "schema": schema}}
    error = error_of(server.post("/v1/responses", {"input": "x", "text": shape}), 400)
    assert error["message"] == f"text.format.schema.{where}"
    talk = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    tools = {"tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "any"}}
    error = server.post("/v1/messages", talk | tools).json()["error"]
    assert error["message"] == f"tools[0] (f): input_schema.{where}"


@pytest.mark.parametrize("more", [{}, {"required": []}, {"strict": True}])
def test_a_function_without_parameters_gets_none(server: Server, more: dict[str, Any]) -> None:
    strict = more.pop("strict", None)
    tools = [function("now", {"type": "object", "properties": {}, **more}, strict=strict)]
    answer = server.chat(tools=tools, tool_choice="required", max_tokens=60)
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["arguments"] == "{}"


def test_combined_schemas_are_closed_in_answers(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"mode": {"enum": ["x"]}},
        "required": ["mode"],
        "allOf": [{"properties": {"n": {"type": "boolean"}}, "required": ["n"]}],
        "typo": 1,
        "é\r\nX-Other: 1": 1,
    }
    answer = server.chat(json_schema=schema, max_tokens=60)
    (choice,) = answer.json()["choices"]
    assert json.loads(choice["message"]["content"]).keys() == {"mode", "n"}
    assert choice["finish_reason"] == "stop"
    assert answer.headers["x-schema-left-out"] == "typo, %C3%A9%0D%0AX-Other%3A%201"
