"""Calls and thoughts in a model's dialect, over the three APIs, plain and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import Serve, with_template

from h2o_runtime.answers.completion import Completion, TextDelta, Timings
from h2o_runtime.answers.dialects import DIALECTS
from h2o_runtime.answers.dialects.speech import Speech
from h2o_runtime.answers.request import Prompt
from h2o_runtime.policies.prefill import Query
from h2o_server.answers.reader import answer_reader
from h2o_server.apis.chat.format import ChatFormat
from h2o_server.apis.chat.schema import ChatRequest
from h2o_server.apis.messages.format import MessageFormat
from h2o_server.apis.responses.format import ResponseFormat
from h2o_server.apis.responses.schema import ResponseRequest

TOOL = {"name": "get_time", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
CHAT = {"messages": [{"role": "user", "content": "?"}], "tools": [{"type": "function", "function": TOOL}]}
PROMPT = Prompt((1, 2), "?", chat=True)
CALLS = [("get_time", {"city": "Oslo"}), ("get_time", {"city": "Rome"})]
ANSWER = (
    "<think>\nWhich time?\n</think>\n\nI will look.\n"
    '<tool_call>\n{"name": "get_time", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rome"}}\n</tool_call>'
)
SPEECH = Speech(DIALECTS["hermes"](), True, {})


def completion(text: str, reason: Any = "stop") -> Completion:
    timings = Timings(cache_n=0, prompt_n=2, prompt_ms=1, predicted_n=9, predicted_ms=1)
    return Completion(text, reason, (), timings, Query(), 0)


def streamed(form: Any, text: str, reason: Any = "stop") -> Iterator[dict[str, Any]]:
    """The chunks of an answer that comes a character at a time."""
    choice = form.choice(0, PROMPT)
    yield from choice.begin()
    for character in text:
        yield from choice.text_delta(TextDelta(character, ()))
    yield from choice.end(completion(text, reason))
    yield from form.end([completion(text, reason)])


def whole(form: Any, text: str, reason: Any = "stop") -> Any:
    done = completion(text, reason)
    return form.whole([form.choice(0, PROMPT).whole(done)], [done])


def chat_form() -> ChatFormat:
    return ChatFormat(ChatRequest.model_validate(CHAT), "m", lambda token: b"", SPEECH)


def message_form() -> MessageFormat:
    return MessageFormat(ChatRequest.model_validate(CHAT), "m", SPEECH)


def response_form() -> ResponseFormat:
    body = ResponseRequest.model_validate({"input": "?", "tools": [{"type": "function", **TOOL}]})
    return ResponseFormat(body, ChatRequest.model_validate(CHAT), "m", SPEECH)


def test_a_streamed_chat() -> None:
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed(chat_form(), ANSWER)]
    told = {
        name: "".join(delta.get(name) or "" for delta in deltas)
        for name in ("reasoning_content", "reasoning", "content")
    }
    assert [*told.values()] == ["Which time?", "Which time?", "I will look."]
    calls: list[dict[str, str]] = []
    pieces = 0
    for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
        if "id" in call:
            assert call["index"] == len(calls)
            calls.append({"name": call["function"]["name"], "arguments": ""})
        calls[call["index"]]["arguments"] += call["function"]["arguments"]
        pieces += 1
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == CALLS
    assert pieces > 10


def test_a_streamed_message() -> None:
    built: list[dict[str, Any]] = []
    kinds: set[str] = set()
    for event in streamed(message_form(), ANSWER):
        if event["type"] == "content_block_start":
            built.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], built[event["index"]]
            kinds.add(delta["type"])
            block["thinking"] = block.get("thinking", "") + delta.get("thinking", "")
            block["text"] = block.get("text", "") + delta.get("text", "")
            block["signature"] = block.get("signature", "") + delta.get("signature", "")
            block["json"] += delta.get("partial_json", "")
    assert kinds == {"thinking_delta", "signature_delta", "text_delta", "input_json_delta"}
    plain = whole(message_form(), ANSWER)["content"]
    assert [block["type"] for block in built] == [block["type"] for block in plain]
    assert (built[0]["thinking"], built[0]["signature"]) == (plain[0]["thinking"], plain[0]["signature"])
    assert built[1]["text"] == "I will look."
    assert [json.loads(block["json"]) for block in built[2:]] == [arguments for _, arguments in CALLS]


def test_a_response_plain_and_streamed() -> None:
    plain = whole(response_form(), ANSWER)
    *events, last = streamed(response_form(), ANSWER)
    assert last["type"] == "response.completed"
    for response in (plain, last["response"]):
        thought, message, *calls = response["output"]
        assert (thought["type"], thought["content"][0]["text"]) == ("reasoning", "Which time?")
        assert message["content"][0]["text"] == "I will look."
        assert [(call["name"], json.loads(call["arguments"])) for call in calls] == CALLS
    written = [
        event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"
    ]
    assert len(written) > 10
    assert "".join(written) == "".join(call["arguments"] for call in plain["output"][2:])


def test_half_a_call_ends_at_the_limit() -> None:
    half = ANSWER[: ANSWER.index("Rome") + 2]
    choice = whole(chat_form(), half, "length")["choices"][0]
    assert choice["finish_reason"] == "length"
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == [
        '{"city": "Oslo"}',
        '{"city": "Ro',
    ]
    limited = ChatRequest.model_validate({**CHAT, "max_tokens": 1})
    message = whole(MessageFormat(limited, "m", SPEECH), half, "length")
    assert message["stop_reason"] == "max_tokens"
    assert whole(message_form(), half, "length")["stop_reason"] == "model_context_window_exceeded"
    assert whole(response_form(), half, "length")["status"] == "incomplete"


def test_a_call_that_is_no_json_stays_text() -> None:
    for text in ("<tool_call>get the time</tool_call>", '<tool_call>{"name": get_time}</tool_call>'):
        choice = whole(chat_form(), text)["choices"][0]
        assert choice["message"]["content"] == text
        assert choice["finish_reason"] == "stop"


CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Oslo"}}\n</tool_call>'


def test_a_strict_function_is_called_only_where_its_schema_is_enforced() -> None:
    written = CALL.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    strict = {**CHAT, "tools": [{"type": "function", "function": {**TOOL, "strict": True}}]}
    for asked, calls in ((CHAT, 1), (strict, 0)):
        reader = answer_reader(ChatRequest.model_validate(asked), PROMPT, SPEECH)
        told = [*reader.push(written), *reader.finish()]
        assert reader.calls == calls
        assert calls or "".join(map(str, told)) == written


def test_the_flag_chooses_the_dialect(serve: Serve, tiny_bundle: Path) -> None:
    server = serve("--ctx-size", 512, "--dialect", "qwen-coder")
    assert server.get("/props").json()["dialect"] == "qwen-coder"
    assert "calls of functions are read as qwen-coder" in server.log
    answer = server.chat(**CHAT, tool_choice="required", max_tokens=100, temperature=0).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_time"
    plain = server.chat(**CHAT, max_tokens=1).json()["usage"]["prompt_tokens"]
    assert plain > server.chat(messages=CHAT["messages"], max_tokens=1).json()["usage"]["prompt_tokens"]


@pytest.fixture
def special_bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A model that calls in Mistral's dialect, whose mark is a special token."""
    template = tmp_path / "mistral.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}{# [TOOL_CALLS] #}")
    bundle = with_template(tiny_bundle, tmp_path / "bundle", template)
    for name in ("tokenizer.json", "manifest.json"):
        text = (bundle / name).read_text(encoding="utf-8")
        (bundle / name).unlink()  # the copies may be links
        if name == "manifest.json":
            manifest = json.loads(text)
            del manifest["files"]["tokenizer.json"]
            text = json.dumps(manifest)
        (bundle / name).write_text(text.replace("<|start_header_id|>", "[TOOL_CALLS]"), encoding="utf-8")
    return bundle


def test_a_mark_that_is_a_special_token_is_read_and_not_shown(serve: Serve, special_bundle: Path) -> None:
    server = serve("--ctx-size", 512, bundle=special_bundle)
    assert server.get("/props").json()["dialect"] == "mistral"
    tools = [{"type": "function", "function": {"name": "ping"}}]
    asked = {**CHAT, "tools": tools, "tool_choice": "required", "max_tokens": 100, "temperature": 0}
    (choice,) = server.post("/v1/chat/completions", asked).json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "ping", "arguments": "{}"}
    assert len(call["id"]) == 9
    ids = server.post("/tokenize", {"content": "[TOOL_CALLS]"}).json()["tokens"]
    assert len(ids) == 1
    bias = {str(ids[0]): 100}  # it writes nothing else
    plain = server.chat(temperature=0, logit_bias=bias).json()["choices"][0]["message"]["content"]
    assert plain == ""


@pytest.mark.parametrize("name", DIALECTS.names)
def test_every_dialect_is_in_the_docs(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "dialects.md").read_text(encoding="utf-8")
    assert f"| `{name}` | {DIALECTS[name].title} |" in text
