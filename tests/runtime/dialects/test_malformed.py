"""Answers and schemas that no client could use: a text, a broken call or a refusal, but no error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError
from tests.runtime.dialects.families import FUNCTIONS, read

from h2o_runtime.answers.dialects import DIALECTS
from h2o_runtime.answers.dialects.answer import Arguments, CallBegun
from h2o_runtime.answers.dialects.reader import _BLOCK, AnswerReader
from h2o_runtime.answers.dialects.speech import Speech
from h2o_runtime.errors import ConfigError
from h2o_server.apis.chat.schema import Function
from h2o_server.apis.messages.format import _object

NAME = next(iter(FUNCTIONS))


@pytest.mark.parametrize("value", ["{1, 2}", 'b"a"', "...", "1j", "1e999", "{1: 2}"])
def test_python_that_is_no_json_is_text(value: str) -> None:
    written = f"```python\n{NAME}(x={value})\n```"
    assert read("gemma", written)[1:3] == (written, [])


def test_code_that_is_no_call_ends_where_it_ends() -> None:
    call = f'```json\n{{"name": "{NAME}", "parameters": {{}}}}\n```'
    _, text, calls, cut = read("gemma", f"```python\nprint(1)\n```\nNow:\n{call}\n")
    assert (text.strip(), calls, cut) == ("```python\nprint(1)\n```\nNow:", [(NAME, "{}")], False)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_does_not_know_makes_a_broken_call(value: str) -> None:
    assert read("hermes", f'<tool_call>{{"name": "{NAME}", "arguments": {{"x": {value}}}}}</tool_call>')[3]
    _, _, calls, cut = read("gemma4", f"<|tool_call>call:{NAME}{{x:{value}}}<tool_call|>")
    assert (json.loads(calls[0][1]), cut) == ({"x": value}, False)  # a text


def test_half_a_surrogate_pair_can_be_sent() -> None:
    written = json.dumps(json.dumps({"x": "\ud83d"}, ensure_ascii=False))
    _, _, calls, _ = read("hermes", f'<tool_call>{{"name": "{NAME}", "arguments": {written}}}</tool_call>')
    assert json.loads(calls[0][1].encode()) == {"x": "?"}


def test_a_broken_call_before_a_whole_one_is_told() -> None:
    broken, whole = '{"x": NaN}', '{"x": 1}'
    calls = [f'<tool_call>{{"name": "{NAME}", "arguments": {each}}}</tool_call>' for each in (broken, whole)]
    assert read("hermes", *calls)[3]
    assert not read("hermes", calls[1], calls[1])[3]


@pytest.mark.parametrize("dialect", DIALECTS.names)
def test_a_special_token_in_a_long_text_is_not_shown(dialect: str) -> None:
    """Wherever it stands in an answer that is read at once."""
    marks = DIALECTS[dialect]().marks
    for mark in DIALECTS[dialect]().ends:
        texts = {
            "".join(
                map(str, AnswerReader(DIALECTS[dialect](), {}, hidden=marks).push("a" * before + mark + "b"))
            )
            for before in range(_BLOCK - len(mark), _BLOCK + 1)
        }
        assert {text.strip("a") for text in texts} == {"b"}, mark


def test_text_without_functions_is_not_held_back() -> None:
    reader = AnswerReader(DIALECTS["json"](), {})
    assert reader.push('{"a": [1,') == ['{"a": [1,']


def test_only_one_call_is_one_though_it_is_broken() -> None:
    calls = f'<tool_call>{{"name": "{NAME}", "arguments": {{"x": NaN}}}}</tool_call>' * 2
    reader = AnswerReader(DIALECTS["hermes"](), FUNCTIONS, only_one=True)
    parts = reader.push(calls) + reader.finish()
    assert isinstance(parts[0], CallBegun)
    assert {part.index for part in parts if isinstance(part, Arguments)} == {0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"x": NaN}', {}),
        ('{"x": 1e999}', {}),
        ("[1]", {}),
        ('{"x": ' + "[" * 2000, {}),
        ('{"x": "\\ud83d"}', {"x": "?"}),
        ('{"x": "é"}', {"x": "é"}),
    ],
)
def test_the_input_of_a_tool_can_be_sent(text: str, expected: dict[str, Any]) -> None:
    assert _object(text) == expected


@pytest.mark.parametrize("dialect", ["gemma4", "functiongemma"])
def test_a_schema_that_refers_to_itself_many_times_is_refused(dialect: str) -> None:
    members = {f"p{i}": {"$ref": "#/$defs/a"} for i in range(30)}
    schema = {
        "properties": {"x": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"type": "object", "properties": members}},
    }
    with pytest.raises(ConfigError, match="too long a grammar"):
        Speech(DIALECTS[dialect](), False, {}).call_grammar({NAME: schema}, "")


@pytest.mark.parametrize("dialect", DIALECTS.names)
@pytest.mark.parametrize(
    "given",
    [{"properties": None}, {"required": None}, {"properties": {"a": {"enum": None}}}, {"$defs": None}],
)
def test_members_of_a_schema_that_are_null_are_none(dialect: str, given: dict[str, Any]) -> None:
    schema = Function(name="f", parameters={"type": "object", **given}).parameters
    assert schema is not None
    assert Speech(DIALECTS[dialect](), False, {}).call_grammar({"f": schema}, "")


@pytest.mark.parametrize(
    "given",
    [
        {"properties": []},
        {"required": "x"},
        {"properties": {"a": {"enum": 5}}},
        {"$defs": 1},
        {"items": {"enum": 5}},
    ],
)
def test_a_malformed_schema_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="should be"):
        Function(name="f", parameters={"type": "object", **given})
