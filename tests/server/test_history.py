"""What servers, gateways and SDKs wrote comes back in a conversation: from requests to prompts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import BaseModel, ValidationError
from tests.runtime.chat_templates import NEEDS_A_QUESTION, ONE_BESIDE_A_CALL
from tests.server.running import Server

from h2o_runtime.answers.dialects import DIALECTS
from h2o_runtime.policies.prefill import Full
from h2o_runtime.text import ChatTemplate, ToolUse
from h2o_server.apis.chat.schema import ChatRequest
from h2o_server.apis.messages import input as messages
from h2o_server.apis.messages.schema import MessageRequest
from h2o_server.apis.responses import input as responses
from h2o_server.apis.responses.schema import ResponseRequest
from h2o_server.apis.shared.left_alone import left_alone
from h2o_server.request_builder import RequestBuilder

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
APIS: dict[str, tuple[type[BaseModel], Callable[[Any], ChatRequest]]] = {
    CHAT: (ChatRequest, lambda body: body),
    MESSAGES: (MessageRequest, messages.chat_of),
    RESPONSES: (ResponseRequest, responses.chat_of),
}
EVERYTHING = (
    "{% for m in messages %}[{{ m.role }}: {{ (m.reasoning_content or '') + '|' + (m.content or '') }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function | tojson }}>{% endfor %}]{% endfor %}"
)
ASKED = {"role": "user", "content": "Weather in Rome?"}
RESULT = "[tool: |sunny]"
MISSING = object()


class RenderedError(Exception):
    """The prompt: nothing behind it is needed."""


def read(path: str, talk: list[Any]) -> Any:
    field, more = ("input", {}) if path == RESPONSES else ("messages", {"max_tokens": 4})
    return APIS[path][0].model_validate({field: talk, **more})


@cache
def tool_use(template: str) -> ToolUse:
    return ToolUse(ChatTemplate({"default": template}, {}, "test"), DIALECTS["json"]().written)


def prompt(path: str, talk: list[Any], template: str = EVERYTHING) -> str:
    use = tool_use(template)

    def rendered(told: Any, most: Any, **options: Any) -> Any:
        raise RenderedError(use.render(told, **options))

    builder = RequestBuilder(SimpleNamespace(chat_prompt=rendered, chat_template=""), Mock(), Full())  # type: ignore[arg-type]
    with pytest.raises(RenderedError) as caught:
        builder.chat(APIS[path][1](read(path, talk)))
    return str(caught.value)


def without_missing(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not MISSING}


def called(
    path: str,
    arguments: Any,
    *,
    text: str | None = None,
    thoughts: str | None = None,
    beside: dict[str, Any] | None = None,
    in_call: dict[str, Any] | None = None,
) -> list[Any]:
    """An assistant's turn with a call, and the result.

    beside, in_call: further members of the message (or its text's item or block), and of the call
    """
    beside, in_call = beside or {}, in_call or {}
    named = without_missing({"name": "look", "arguments": arguments})
    if path == CHAT:
        call = {"id": "c1", "type": "function", "function": {**named, **in_call}}
        said = {"role": "assistant", "content": text, "reasoning_content": thoughts, **beside}
        return [said | {"tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
    if path == RESPONSES:
        thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": thoughts}]}
        items: list[Any] = [thought] if thoughts else []
        items += [{"role": "assistant", "content": text, **beside}] if text else []
        call = {"type": "function_call", "call_id": "c1", **named, **in_call}
        return [*items, call, {"type": "function_call_output", "call_id": "c1", "output": "sunny"}]
    blocks: list[Any] = [{"type": "thinking", "thinking": thoughts}] if thoughts else []
    blocks += [{"type": "text", "text": text, **beside}] if text else []
    use = without_missing({"type": "tool_use", "id": "c1", "name": "look", "input": arguments, **in_call})
    return [
        {"role": "assistant", "content": [*blocks, use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}]},
    ]


# Arguments


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"city": "Rom \u00e9", "days": [1, None, 2.5]}, {"city": "Rom \u00e9", "days": [1, None, 2.5]}),
        ('{"city": "Rome"}', {"city": "Rome"}),
        ({}, {}),
        (None, {}),
        (MISSING, {}),
        ("", {}),
        ("null", {}),
        ('{"bad', '{"bad'),
    ],
)
def test_arguments_in_every_form(path: str, given: Any, shown: Any) -> None:
    function = json.dumps({"name": "look", "arguments": shown}, ensure_ascii=False)
    text = prompt(path, [ASKED, *called(path, given)])
    assert text == f"[user: |Weather in Rome?][assistant: |<{function}>]{RESULT}"


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("given", [5, True, ["Rome"]])
def test_arguments_that_are_no_object_are_refused(path: str, given: Any) -> None:
    with pytest.raises(ValidationError):
        read(path, [ASKED, *called(path, given)])


# Thoughts, a text and a call in one message


@pytest.mark.parametrize("path", APIS)
def test_thoughts_and_text_beside_a_call(path: str) -> None:
    talk = [ASKED, *called(path, {"city": "Rome"}, text="I look.", thoughts="They want the weather.")]
    text = prompt(path, talk, ONE_BESIDE_A_CALL)
    assert text == (
        "<|start|>user<|message|>Weather in Rome?<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>They want the weather.\n\nI look.<|end|>"
        '<|start|>assistant to=functions.look<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>'
        '<|start|>functions to=assistant<|channel|>commentary<|message|>"sunny"<|end|><|start|>assistant'
    )


# Unknown members

FOREIGN = {"provider_specific_fields": {"refusal": None}, "opts": {"visible": False}, "id2": 1947}


@pytest.mark.parametrize(
    ("path", "beside", "in_call"),
    [
        (CHAT, "messages", "messages.tool_calls.function"),
        (RESPONSES, "input", "input"),
        (MESSAGES, "messages.content", "messages.content"),
    ],
)
def test_unknown_members_of_the_history_are_left_alone(path: str, beside: str, in_call: str) -> None:
    more = {"parsed_arguments": {"city": "Rome"}, "extra_content": {"google": {}}, "null": None}
    plain = [ASKED, *called(path, "{}", text="I look.")]
    talk = [ASKED, *called(path, "{}", text="I look.", beside=FOREIGN, in_call=more)]
    assert left_alone(read(path, talk)) == {
        *(f"{beside}.{name}" for name in FOREIGN),
        *(f"{in_call}.{name}" for name in ("parsed_arguments", "extra_content")),
    }
    assert prompt(path, talk) == prompt(path, plain)


def test_members_of_messages_and_of_other_parts() -> None:
    """A gateway's in a call, an editor's in a user's message, and those of turns, results and their parts."""
    call = {"id": "c", "function": {"name": "f"}, "extra_content": {}}
    part = {"type": "text", "text": "x", "a": 1}
    result = {"role": "tool", "tool_call_id": "c", "content": [part], "b": 1}
    talk = [{**ASKED, "id": 1947, "opts": {}}, {"role": "assistant", "tool_calls": [call]}, result]
    assert left_alone(read(CHAT, talk)) == {
        *("messages.id", "messages.opts", "messages.tool_calls.extra_content"),
        *("messages.content.a", "messages.b"),
    }
    block = {"type": "tool_result", "tool_use_id": "c", "content": [part], "b": 1}
    turn = {"role": "user", "content": [block, part], "id": 5}
    assert left_alone(read(MESSAGES, [turn])) == {
        *("messages.content.content.a", "messages.content.b", "messages.content.a", "messages.id")
    }
    output = {"type": "function_call_output", "call_id": "c", "output": [part | {"type": "input_text"}]}
    assert left_alone(read(RESPONSES, [output])) == {"input.output.a"}


def test_a_name_that_no_header_can_have_is_told_as_a_question_mark() -> None:
    for name in ("a\r\nb", "\u00fc", "x" * 65, "", "a, b"):
        assert left_alone(read(CHAT, [{**ASKED, name: 1}])) == {"messages.?"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "user", "contents": "x"},
        {"content": "x"},
        {"role": "assistant", "contnet": "x", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
        {"role": "assistant", "content": "x", "tool_call": []},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "argumets": "{}"}}]},
        {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "user", "content": "x", "images": ["AAAA"]},
        {"role": "user", "content": "x", "image_url": "data:,"},
        {"role": "assistant", "content": "x", "audio": {"id": "audio_1"}},
        {"role": "user", "content": [{"type": "text", "txt": "x"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}, "text": "x"}]},
    ],
)  # fmt: skip
def test_what_would_change_the_prompt_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        read(CHAT, [ASKED, wrong])


def test_a_misspelt_member_is_named(server: Server) -> None:
    error = server.chat(messages=[{"role": "assistant", "contnet": "x"}]).json()["error"]
    assert error["param"] == "messages.0"
    assert error["message"] == "messages.0: contnet is not a member here: did you mean content?"
    error = server.chat(messages=[ASKED | {"images": ["AAAA"]}]).json()["error"]
    assert error["message"] == "messages.0: images is not supported: this server reads text alone"


def test_no_member_that_says_nothing_is_refused() -> None:
    talk = [
        ASKED | {"images": [], "audio": None},
        {"role": "assistant", "content": "x", "audio": None, "tool_call": None},
    ]
    assert left_alone(read(CHAT, talk)) == {"messages.images"}


def test_the_header_of_many_members_stays_short(server: Server) -> None:
    talk = [ASKED | {f"member_{number:04}": 1 for number in range(1000)}]
    response = server.chat(messages=talk)
    assert response.status_code == 200, response.text
    told = response.headers["X-Left-Alone"]
    assert told.startswith("messages.member_0000, messages.member_0001, ")
    assert told.endswith("...")
    assert len(told) < 5000


def test_thinking_blocks_are_thoughts() -> None:
    """As LiteLLM has them; beside the reasoning itself they say it again."""
    blocks = [
        {"type": "thinking", "thinking": "They want ", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "the weather.", "signature": "y"},
    ]
    for thoughts in (None, "They want the weather."):
        talk = [ASKED, *called(CHAT, "{}", thoughts=thoughts, beside={"thinking_blocks": blocks})]
        assert "[assistant: They want the weather.|<" in prompt(CHAT, talk)


# A conversation that was trimmed


@pytest.mark.parametrize("path", APIS)
def test_a_conversation_without_the_users_question(path: str) -> None:
    system = {"role": "system", "content": "You are an agent."}
    text = prompt(path, [system, *called(path, {"city": "Rome"})], NEEDS_A_QUESTION)
    assert text == (
        "<|im_start|>system\nYou are an agent.<|im_end|>\n<|im_start|>user\nContinue.<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n"
    )


# Documents

SKY = "The sky over the island is green."
PLAIN = {"type": "text", "media_type": "text/plain", "data": SKY}
PARTS = {"type": "content", "content": [{"type": "text", "text": SKY[:9]}, {"type": "text", "text": SKY[9:]}]}
FOUND = {
    "type": "search_result",
    "source": "https://sky.example",
    "title": "Sky",
    "content": PARTS["content"],
}
DOCUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"type": "document", "source": PLAIN}, f"<document>\n{SKY}\n</document>\n"),
    (
        {"type": "document", "source": PLAIN, "title": "Note", "context": "Of 1990.", "citations": {}},
        f"<document>\nTitle: Note\nContext: Of 1990.\n\n{SKY}\n</document>\n",
    ),
    ({"type": "document", "source": PARTS, "title": None}, f"<document>\n{SKY}\n</document>\n"),
    ({"type": "document", "source": {"type": "content", "content": SKY}}, f"<document>\n{SKY}\n</document>\n"),
    (FOUND, f"<search_result>\nTitle: Sky\nSource: https://sky.example\n\n{SKY}\n</search_result>\n"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "shown"), DOCUMENTS)
def test_documents_that_are_text_are_shown(block: dict[str, Any], shown: str) -> None:
    question = {"type": "text", "text": "Which colour?"}
    turn = {"role": "user", "content": [block, question]}
    assert prompt(MESSAGES, [turn]) == f"[user: |{shown}Which colour?]"
    assert left_alone(read(MESSAGES, [turn])) <= {"messages.content.citations"}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [block, question]}
    talk = [ASKED, called(MESSAGES, {})[0], {"role": "user", "content": [result]}]
    assert prompt(MESSAGES, talk).endswith(f"[tool: |{shown}Which colour?]")


@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "media_type": "application/pdf", "data": "AAAA"},
        {"type": "url", "url": "https://sky.example/a.pdf"},
        {"type": "file", "file_id": "f"},
        {"type": "content", "content": [{"type": "text", "text": "x"}, {"type": "image", "source": {}}]},
    ],
)
def test_other_documents_are_refused_and_in_a_result_told(source: dict[str, Any]) -> None:
    block = {"type": "document", "source": source}
    with pytest.raises(ValidationError, match="documents are not supported: this server reads text alone"):
        read(MESSAGES, [{"role": "user", "content": [block]}])
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [block]}
    talk = [ASKED, called(MESSAGES, {})[0], {"role": "user", "content": [result]}]
    assert "[tool: |[The tool gave documents here, which cannot be shown" in prompt(MESSAGES, talk)
