"""Which texts are tool calls, and which may still become one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h2o_runtime.server.schemas.chat import Tool
from h2o_runtime.server.tools import call_schema, may_become_call, parse_calls

NAMES = {"f", "g.h"}
CALL = '{"name": "f", "parameters": {"x": 1}}'


def arguments(text: str) -> list[tuple[str, Any]]:
    calls = parse_calls(text, NAMES)
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL, [("f", {"x": 1})]),
        (f"  \n{CALL}\n ", [("f", {"x": 1})]),
        (f"<|python_tag|>{CALL}", [("f", {"x": 1})]),
        (f"<|python_tag|> {CALL}", [("f", {"x": 1})]),
        (f"{CALL}; {CALL}", [("f", {"x": 1})] * 2),
        (f"{CALL};{CALL};", [("f", {"x": 1})] * 2),
        (f"{CALL}\n{CALL}", [("f", {"x": 1})] * 2),
        ('{"name": "g.h", "arguments": {}}', [("g.h", {})]),
        ('{"type": "function", "name": "f", "parameters": {"x": "é"}}', [("f", {"x": "é"})]),
        ('{"parameters": {"x": {"y": [null]}}, "name": "f"}', [("f", {"x": {"y": [None]}})]),
    ],
)
def test_calls(text: str, expected: list[tuple[str, Any]]) -> None:
    assert arguments(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Hello.",
        "{",
        CALL[:-1],
        f"I call {CALL}",
        f"{CALL} That was it.",
        f"{CALL}; {CALL[:-3]}",
        f"{CALL}, {CALL}",
        f"[{CALL}]",
        '{"name": "unknown", "parameters": {}}',
        '{"name": "f"}',
        '{"name": "f", "parameters": "x"}',
        '{"name": "f", "parameters": null}',
        '{"name": ["f"], "parameters": {}}',
        '{"name": {"f": 1}, "parameters": {}}',
        '{"name": null, "parameters": {}}',
        '{"parameters": {}}',
        "[]",
        "1",
        "null",
        "[" * 100_000,
        '{"name": "f", "parameters": {"x": ' + "[" * 100_000,
        '{"name": "f", "parameters": {"x": ' + "9" * 5000 + "}}",
    ],
)
def test_no_calls(text: str) -> None:
    assert parse_calls(text, NAMES) == []


@pytest.mark.parametrize("text", ["", " \n", "{", ' {"name"', "<", "<|python_tag|>", "<|python_tag|>{", CALL])
def test_what_may_become_a_call(text: str) -> None:
    assert may_become_call(text)


@pytest.mark.parametrize("text", ["a", " a", "[", "<|eot", "<p>", '"', "0", "é", " ;{"])
def test_what_cannot_become_a_call(text: str) -> None:
    assert not may_become_call(text)


@given(st.integers(0, 60))
def test_every_beginning_of_a_call_may_become_one(end: int) -> None:
    """Otherwise a stream would have shown a part of it as text."""
    for text in (CALL, f"<|python_tag|>{CALL}", f"\n {CALL}"):
        assert may_become_call(text[:end])


def tool(name: str, parameters: dict[str, Any] | None = None) -> Tool:
    return Tool.model_validate({"type": "function", "function": {"name": name, "parameters": parameters}})


def test_the_schema_of_one_tool_and_of_several() -> None:
    one = call_schema([tool("f", {"type": "object", "properties": {"x": {"type": "integer"}}})])
    assert one["properties"]["name"] == {"const": "f"}
    assert one["required"] == ["name", "parameters"]
    several = call_schema([tool("f"), tool("g")])
    assert [entry["properties"]["name"]["const"] for entry in several["anyOf"]] == ["f", "g"]


def test_a_tool_without_parameters_takes_none() -> None:
    schema = call_schema([tool("f")])["properties"]["parameters"]
    assert schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_definitions_move_to_the_root_where_references_look_for_them() -> None:
    parameters = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/X"}},
        "$defs": {"X": {"type": "null"}},
    }
    assert call_schema([tool("f", parameters)])["$defs"] == {"X": {"type": "null"}}
    assert call_schema([tool("f", parameters), tool("g")])["$defs"] == {"X": {"type": "null"}}
