"""/v1/messages, as Anthropic's own client and those who build agents on it use it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.server.conftest import Serve
from tests.server.running import Server, events
from tests.server.weather import MESSAGES as WEATHER
from tests.server.weather import TALK

from h2o_server.apis.messages.input import chat_of
from h2o_server.apis.messages.schema import MessageRequest

GREEDY = {"model": "m", "extra_body": {"temperature": 0.0}}


def test_a_text_is_what_a_chat_gives(anthropic: Any, server: Server) -> None:
    answer = anthropic.messages.create(messages=TALK, max_tokens=6, system="Be brief.", **GREEDY)
    talk = [{"role": "system", "content": "Be brief."}, *TALK]
    chat = server.chat(messages=talk, max_tokens=6, temperature=0).json()
    (block,) = answer.content
    assert (block.type, block.text) == ("text", chat["choices"][0]["message"]["content"])
    assert (answer.type, answer.role, answer.stop_reason) == ("message", "assistant", "max_tokens")
    usage = answer.usage
    read = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    assert (read, usage.output_tokens) == (chat["usage"]["prompt_tokens"], 6)


def test_a_stop_sequence_is_named(anthropic: Any) -> None:
    text = anthropic.messages.create(messages=TALK, max_tokens=30, **GREEDY).content[0].text
    stop = text[len(text) // 2 :][:3]
    answer = anthropic.messages.create(messages=TALK, max_tokens=30, stop_sequences=[stop], **GREEDY)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert answer.content[0].text == text[: text.index(stop)]


def test_an_answer_goes_on_with_the_assistants_message(anthropic: Any, server: Server) -> None:
    talk = [*TALK, {"role": "assistant", "content": "It is"}]
    answer = anthropic.messages.create(messages=talk, max_tokens=6, **GREEDY)
    chat = server.chat(messages=talk, max_tokens=6, temperature=0, continue_final_message=True).json()
    assert answer.content[0].text == chat["choices"][0]["message"]["content"]


def test_a_schema_is_followed(anthropic: Any) -> None:
    format = {"type": "json_schema", "schema": {"enum": ["red", "green"]}}
    answer = anthropic.messages.create(
        model="m", messages=TALK, max_tokens=20, output_config={"format": format}
    )
    assert json.loads(answer.content[0].text) in ("red", "green")
    assert answer.stop_reason == "end_turn"


def a_loop(anthropic: Any, stream: bool) -> None:
    """test_agents.py runs it beside those of other clients."""

    def answered(talk: list[Any], **more: Any) -> Any:
        asked = {"model": "m", "messages": talk, "tools": [WEATHER], "max_tokens": 60, **more}
        if not stream:
            return anthropic.messages.create(**asked)
        with anthropic.messages.stream(**asked) as streamed:
            return streamed.get_final_message()

    talk: list[Any] = list(TALK)
    answer = answered(talk, tool_choice={"type": "any"})
    (use,) = answer.content
    assert (use.type, use.name, answer.stop_reason) == ("tool_use", "get_weather", "tool_use")
    assert use.input["days"] in range(1, 10)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "281"}
    talk += [{"role": "assistant", "content": answer.content}]
    talk += [{"role": "user", "content": [result, {"type": "text", "text": "And in words?"}]}]
    told = answered(talk, tool_choice={"type": "none"})
    assert {block.type for block in told.content} == {"text"}
    talk += [{"role": "assistant", "content": told.content}, {"role": "user", "content": "And now?"}]
    again = answered(talk, tool_choice={"type": "tool", "name": "get_weather"})
    assert again.content[0].type == "tool_use"


def test_a_function_that_failed_is_told_to_the_model() -> None:
    result = {"type": "tool_result", "tool_use_id": "c", "content": "no such file"}
    for failed, text in ((None, "no such file"), (False, "no such file"), (True, "Error: no such file")):
        body = {
            "model": "m",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": [result | {"is_error": failed}]}],
        }
        (message,) = chat_of(MessageRequest.model_validate(body)).messages
        assert message.content == text


@pytest.mark.parametrize("tools", [False, True])
def test_the_stream_is_the_plain_answer_step_by_step(server: Server, tools: bool) -> None:
    body: dict[str, Any] = {"messages": TALK, "temperature": 0, "max_tokens": 40}
    body |= {"tools": [WEATHER], "tool_choice": {"type": "any"}} if tools else {}
    plain = server.post("/v1/messages", body).json()
    with (
        server.client() as client,
        client.stream("POST", "/v1/messages", json=body | {"stream": True}) as response,
    ):
        lines = list(response.iter_lines())
    told = list(events(iter(lines)))
    kinds = [event["type"] for event in told]
    assert [line[7:] for line in lines if line.startswith("event: ")] == kinds
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    assert kinds == [
        *("message_start", "content_block_start"),
        *["content_block_delta"] * len(deltas),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert len(deltas) > 3
    pieces = [delta["partial_json" if tools else "text"] for delta in deltas]
    (block,) = plain["content"]
    assert "".join(pieces) == (json.dumps(block["input"]) if tools else block["text"])
    assert told[-2]["delta"] == {key: plain[key] for key in ("stop_reason", "stop_sequence")}
    assert told[-2]["usage"]["output_tokens"] == plain["usage"]["output_tokens"]
    begun = told[0]["message"]["usage"]["input_tokens"]
    assert begun == plain["usage"]["input_tokens"] + plain["usage"]["cache_read_input_tokens"]


def test_a_use_that_was_cut_has_no_input(server: Server) -> None:
    body = {"messages": TALK, "tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": 9}
    answer = server.post("/v1/messages", body).json()
    assert answer["stop_reason"] == "max_tokens"
    assert answer["content"][0] | {"id": ""} == {
        "type": "tool_use",
        "id": "",
        "name": "get_weather",
        "input": {},
    }


def test_tokens_are_counted(anthropic: Any) -> None:
    for more in ({}, {"system": "Be brief."}, {"tools": [WEATHER]}):
        counted = anthropic.messages.count_tokens(model="m", messages=TALK, **more).input_tokens
        usage = anthropic.messages.create(model="m", messages=TALK, max_tokens=1, **more).usage
        assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_tokens_of_a_prompt_beyond_the_context_are_counted(anthropic: Any, server: Server) -> None:
    talk = [{"role": "user", "content": "word " * 2000}]
    counted = anthropic.messages.count_tokens(model="m", messages=talk).input_tokens
    refused = server.post("/v1/messages", {"messages": talk, "max_tokens": 1})
    assert refused.json()["error"]["n_prompt_tokens"] == counted > 512
    many = [{"role": "user", "content": "x"}] * 600
    assert anthropic.messages.count_tokens(model="m", messages=many).input_tokens > 600


def test_what_is_counted_has_a_limit(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "\ua66e" * 100_000}]}  # three tokens each
    answer = server.post("/v1/messages/count_tokens", json.dumps(body, ensure_ascii=False).encode())
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["n_prompt_tokens"] > 262_144
    assert error["n_ctx"] == 512


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"temperature": 1.5}, "temperature"),
        ({"thinking": {"type": "often"}}, "thinking.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "no"}}, "tool_choice"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": 3}}}},
            "output_config.format.schema",
        ),
        ({"container": "x"}, "container"),
        ({"messages": [{"role": "user", "content": "word " * 600}]}, "messages"),
    ],
)
def test_what_cannot_be_honoured_is_named(server: Server, values: dict[str, Any], param: str) -> None:
    body = {"model": "m", "max_tokens": 4, "messages": TALK, **values}
    response = server.post("/v1/messages", {key: value for key, value in body.items() if value is not None})
    assert response.status_code == 400
    told = response.json()
    assert told["type"] == "error"
    assert (told["error"]["type"], told["error"]["param"]) == ("invalid_request_error", param)


def test_the_key_in_anthropics_header(serve: Serve) -> None:
    library = pytest.importorskip("anthropic")
    server = serve(key="secret")
    with library.Anthropic(base_url=server.url, api_key="secret", max_retries=0) as client:
        assert client.messages.create(model="m", messages=TALK, max_tokens=1).type == "message"
    with (
        library.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client,
        pytest.raises(library.AuthenticationError) as refused,
    ):
        client.messages.create(model="m", messages=TALK, max_tokens=1)
    assert refused.value.body["error"]["type"] == "authentication_error"
    assert server.get("/v1/models", headers={"x-api-key": "secret"}).status_code == 200
