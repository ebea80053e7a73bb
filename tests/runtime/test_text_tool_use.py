"""Tools in templates that know them, know half of it, or know nothing of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from h2o_runtime.answers.dialects import DIALECTS
from h2o_runtime.errors import InputError
from h2o_runtime.text import ChatTemplate, ToolUse

WRITTEN = DIALECTS["json"]().written
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
ASK = {"role": "user", "content": "How warm?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def call(name: str = "get_weather", key: str = "call_1", **arguments: Any) -> dict[str, Any]:
    return {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}


def called(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(calls), **more}


def result(content: str, key: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": key, "content": content}


def render(source: str, messages: Sequence[dict[str, Any]], **options: Any) -> str:
    return ToolUse(ChatTemplate({"default": source}, {}, "test"), WRITTEN).render(messages, **options)


TEXTS = "{% for m in messages %}[{{ m['role'] + ': ' + m['content'] }}]{% endfor %}"
CALLS = (
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "<{{ c.function.name }} ARGUMENTS>{% endfor %}{% else %}[{{ m.role + ': ' + m.content }}]{% endif %}"
    "{% endfor %}"
)
OBJECTS = CALLS.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
STRINGS = CALLS.replace("ARGUMENTS", "{{ '' + c.function.arguments }}")
CONTENT = OBJECTS.replace("{% if m.tool_calls %}", "{% if m.tool_calls %}{{ '(' + m.content + ')' }}")


@pytest.mark.parametrize(
    "source", [TEXTS, OBJECTS, STRINGS, CONTENT], ids=["texts", "objects", "strings", "content"]
)
def test_tools_that_the_template_does_not_know_are_in_the_system_message(source: str) -> None:
    text = render(source, [ASK], tools=[TOOL])
    assert text.startswith("[system: ")
    assert json.dumps(TOOL) in text
    assert text.endswith("[user: How warm?]")
    text = render(source, [SYSTEM, ASK], tools=[TOOL])
    assert text.startswith("[system: Be brief.\n\n")
    assert text.count("[system") == 1
    assert json.dumps(TOOL) in text


def test_tools_that_the_template_knows_are_left_to_it() -> None:
    source = "{% if tools %}{{ tools | length }} tools {% endif %}" + TEXTS
    assert render(source, [ASK], tools=[TOOL]) == "1 tools [user: How warm?]"


@pytest.mark.parametrize("tools", [None, []])
def test_without_tools_nothing_changes(tools: Any) -> None:
    assert render(TEXTS, [SYSTEM, ASK], tools=tools) == "[system: Be brief.][user: How warm?]"


def test_a_template_without_a_systems_role_has_them_before_the_first_words() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
    )
    text = render(source + TEXTS, [ASK], tools=[TOOL])
    assert text.startswith("[user: ")
    assert json.dumps(TOOL) in text
    assert text.endswith("\n\nHow warm?]")
    assert render(source + TEXTS, [SYSTEM, ASK], tools=[TOOL]).startswith("[user: Be brief.\n\n")


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (OBJECTS, '<get_weather {"unit": "é"}>[tool: 281]'),
        (STRINGS, '<get_weather {"unit": "é"}>[tool: 281]'),
        (CONTENT, '()<get_weather {"unit": "é"}>[tool: 281]'),
        (
            TEXTS,
            '[assistant: {"name": "get_weather", "parameters": {"unit": "é"}}]'
            '[user: {"result_of": "get_weather", "result": "281"}]',
        ),
    ],
    ids=["objects", "strings", "content", "texts"],
)
@pytest.mark.parametrize("more", [{}, {"content": None}])
def test_calls_and_results_are_shown_as_the_template_can(
    source: str, shown: str, more: dict[str, Any]
) -> None:
    assert render(source, [ASK, called(call(unit="é"), **more), result("281")]) == f"[user: How warm?]{shown}"


def test_results_of_one_messages_calls_are_one_message() -> None:
    """Many a template insists on turns that alternate."""
    calls = called(call(key="a"), call("clock", "b"))
    text = render(
        TEXTS, [ASK, calls, result("281", "a"), result("12", "b"), {"role": "assistant", "content": "So."}]
    )
    assert text.count("[user") == 2
    assert '{"result_of": "get_weather", "result": "281"}\n{"result_of": "clock", "result": "12"}]' in text


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    broken = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a'}}
    assert '{"name": "f", "parameters": {"a}' in render(TEXTS, [ASK, called(broken), result("x", "1")])


def test_a_refusal_of_a_template_that_knows_calls_stays_a_refusal() -> None:
    source = "{% for m in messages if m.tool_calls %}{% if m.tool_calls | length > 1 %}"
    source += "{{ raise_exception('one at a time') }}{% endif %}{% endfor %}" + OBJECTS
    with pytest.raises(InputError, match="one at a time"):
        render(source, [ASK, called(call(), call(key="b"))])


SHOWN = (
    "{% for m in messages %}[{{ m.thinking or '' }}|{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<{{ c.function.name }} {{ '' + c.function.arguments if TEXT else c.function.arguments | tojson }}>"
    "{% endfor %}]{% endfor %}"
)
OBJECT_CALLS, TEXT_CALLS = SHOWN.replace("TEXT", "false"), SHOWN.replace("TEXT", "true")
NOT_BOTH = (
    "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('no') }}"
    "{% endif %}{% endfor %}"
)
SPOKEN = {"role": "assistant", "content": "I look.", "reasoning_content": "So."}


@pytest.mark.parametrize("source", [OBJECT_CALLS, TEXT_CALLS])
@pytest.mark.parametrize(
    ("check", "shown"),
    [("", "[So.|I look.<get_weather {}>]"), (NOT_BOTH, "[|So.\n\nI look.<get_weather {}>]")],
)
@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_thoughts_and_a_text_beside_a_call(source: str, check: str, shown: str, tools: Any) -> None:
    """They become one text where the template refuses both; nowhere else."""
    knows_tools = "{{ tools | length if tools else '' }}"
    talk = [ASK, called(call(), **SPOKEN), result("281"), SPOKEN]
    begins = "1" if tools else ""
    text = render(knows_tools + check + source, talk, tools=tools)
    assert text == f"{begins}[|How warm?]{shown}[|281][So.|I look.]"
    alone = [ASK, called(call(), reasoning_content="So."), result("281")]
    assert (
        render(knows_tools + check + source, alone, tools=tools)
        == f"{begins}[|How warm?][So.|<get_weather {{}}>][|281]"
    )


def test_thoughts_beside_a_call_in_words_are_left_out() -> None:
    text = render(TEXTS, [ASK, called(call(), **SPOKEN), result("281")])
    assert '[assistant: I look.\n{"name": "get_weather", "parameters": {}}]' in text
