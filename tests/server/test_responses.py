"""/v1/responses, as the official client and those who build agents on it use it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter
from tests.server.running import Server, error_of, events
from tests.server.weather import ASK
from tests.server.weather import RESPONSES as WEATHER

from h2o_runtime.answers.completion import TextDelta
from h2o_runtime.answers.dialects import choose
from h2o_runtime.answers.dialects.speech import Speech
from h2o_runtime.answers.request import Prompt
from h2o_server.apis.chat.schema import AssistantMessage
from h2o_server.apis.responses.format import ResponseFormat
from h2o_server.apis.responses.input import chat_of
from h2o_server.apis.responses.schema import ResponseRequest
from h2o_server.http.problems import shutting_down


def test_a_text(openai: Any, server: Server) -> None:
    asked = {"max_output_tokens": 6, "temperature": 0}
    answer = openai.responses.create(model="m", input=ASK, instructions="Be brief.", **asked)
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASK}]
    chat = server.chat(messages=talk, max_tokens=6, temperature=0).json()
    assert answer.output_text == chat["choices"][0]["message"]["content"]
    assert answer.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert answer.usage.output_tokens == 6
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.instructions == "Be brief."
    (item,) = answer.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "incomplete")


def test_an_answer_that_ends_by_itself_is_complete(openai: Any) -> None:
    format = {"type": "json_schema", "name": "n", "schema": {"enum": ["red", "green"]}, "strict": True}
    answer = openai.responses.create(model="m", input=ASK, text={"format": format})
    assert json.loads(answer.output_text) in ("red", "green")
    assert answer.status == "completed"
    assert answer.incomplete_details is None


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_loop(openai: Any, stream: bool) -> None:
    def answered(talk: list[Any], **more: Any) -> Any:
        asked = {"model": "m", "input": talk, "tools": [WEATHER], "max_output_tokens": 40, **more}
        if not stream:
            return openai.responses.create(**asked)
        with openai.responses.stream(**asked) as streamed:
            *_, last = streamed
            return last.response

    talk: list[Any] = [{"role": "user", "content": ASK}]
    answer = answered(talk, tool_choice="required")
    (call,) = answer.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments)["days"] in range(1, 10)
    talk += [*answer.output, {"type": "function_call_output", "call_id": call.call_id, "output": "281"}]
    talk += answered(talk, tool_choice="none").output
    assert talk[-1].type == "message"
    talk.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]})
    named = {"type": "function", "name": "get_weather"}
    assert answered(talk, tool_choice=named).output[0].type == "function_call"


@pytest.mark.parametrize("tools", [False, True])
def test_the_stream_is_the_plain_answer_step_by_step(server: Server, tools: bool) -> None:
    body: dict[str, Any] = {"input": ASK, "temperature": 0, "max_output_tokens": 40}
    body |= {"tools": [WEATHER], "tool_choice": "required"} if tools else {}
    plain = server.post("/v1/responses", body).json()
    with (
        server.client() as client,
        client.stream("POST", "/responses", json=body | {"stream": True}) as response,
    ):
        lines = list(response.iter_lines())
    told = list(events(iter(lines)))
    kinds = [event["type"] for event in told]
    assert [line[7:] for line in lines if line.startswith("event: ")] == kinds
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == f"response.{plain['status']}"
    delta = "response.function_call_arguments.delta" if tools else "response.output_text.delta"
    whole = plain["output"][0]["arguments"] if tools else plain["output"][0]["content"][0]["text"]
    pieces = [event["delta"] for event in told if event["type"] == delta]
    assert len(pieces) > 3
    assert "".join(pieces) == whole
    ids = {"id": None, "call_id": None}
    assert told[-1]["response"]["output"][0] | ids == plain["output"][0] | ids
    assert (
        next(event for event in told if event["type"] == "response.output_item.done")["item"]
        == (told[-1]["response"]["output"][0])
    )


def test_a_stream_that_fails_ends_with_a_failed_response(server: Server) -> None:
    body = {"input": ASK, "stream": True, "repetition_penalty": 1e-300}  # no token is left to choose
    lines = list(server.post("/v1/responses", body).iter_lines())
    told = list(events(iter(lines)))
    assert [line[7:] for line in lines if line.startswith("event: ")] == [event["type"] for event in told]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    error, failed = map(openai_event, told[-2:])
    assert error.to_dict() == told[-2]
    assert (error.type, error.code, error.param) == ("error", "invalid_value", "repetition_penalty")
    assert told[-2]["error"]["message"] == error.message
    assert (failed.type, failed.response.status) == ("response.failed", "failed")
    assert failed.response.id == told[0]["response"]["id"]
    assert (failed.response.error.code, failed.response.error.message) == ("invalid_prompt", error.message)
    assert failed.response.output == []


def openai_event(told: Any) -> Any:
    """An event as the official client's types have it; nothing may be missing."""
    kinds = pytest.importorskip("openai.types.responses")
    return TypeAdapter(kinds.ResponseStreamEvent).validate_python(told)


def test_an_item_of_a_response_that_fails_is_incomplete() -> None:
    body = ResponseRequest.model_validate({"input": ASK})
    speech = Speech.of(choose(None), None, lambda text: None)
    response = ResponseFormat(body, chat_of(body), "m", speech)
    choice = response.choice(0, Prompt((1,), ASK))
    *_, last = [*choice.begin(), *choice.text_delta(TextDelta("It is", ()))]
    error, failed = map(openai_event, response.failed(shutting_down()))
    assert (error.code, error.sequence_number) == ("shutting_down", last["sequence_number"] + 1)
    assert failed.response.error.code == "server_error"
    (item,) = failed.response.output
    assert (item.status, item.content[0].text) == ("incomplete", "It is")


ITEM = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call", "id": "1"}]}, "input.0.type"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"content": "x"}]}, "input.0.type"),
        ({"input": [ITEM | {"role": "tool"}]}, "input.0.role"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input.0.call_id"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "", "arguments": ""}]}, "input.0.name"),
        ({"input": "word " * 2000}, "input"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": "yes"}, "store"),
        ({"priority": 1}, "priority"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"include": ["message.output_text.logprobs"]}, "include.0"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"enum": []}}}},
            "text.format.schema",
        ),
        ({"prefill": {"heavy": 99999}}, "prefill.heavy"),
    ],
)
def test_what_cannot_be_honoured(server: Server, values: dict[str, Any], param: str) -> None:
    error = error_of(server.post("/v1/responses", {"input": "x", "stream": True} | values), 400)
    assert error["param"] == param
    assert param.removesuffix(".heavy") in error["message"] or error["code"] == "context_length_exceeded"


def test_nulls_and_what_has_no_meaning_here(server: Server) -> None:
    nulls = dict.fromkeys(
        ["previous_response_id", "reasoning", "conversation", "tools", "text", "top_p", "prompt"]
    )
    more = {"store": False, "include": [], "metadata": {"a": "b"}, "user": "u", "parallel_tool_calls": True}
    answer = server.post("/v1/responses", {"input": "x", "max_output_tokens": 1, **nulls, **more})
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"] == {"a": "b"}


def test_the_answer_tells_that_it_is_not_stored(server: Server) -> None:
    """OpenAI's default is true, and routers write it out."""
    answer = server.post("/v1/responses", {"input": "Once", "store": True, "max_output_tokens": 1}).json()
    assert answer["store"] is False
    named = server.post("/v1/responses", {"input": "Once", "previous_response_id": answer["id"]})
    assert error_of(named, 400)["param"] == "previous_response_id"


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_what_an_answer_repeats_can_be_sent(server: Server, stream: bool) -> None:
    """Half a surrogate pair, and a number beyond a float's range."""
    odd = {"\ud800": ["\udc00 x", 1e400, 1.5]}
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "default": odd}}
    body = {"input": "x", "max_output_tokens": 1, "metadata": odd, "tools": [tool], "tool_choice": "none"}
    answer = server.post("/v1/responses", body | {"stream": stream})
    assert answer.status_code == 200, answer.text
    told = [*events(answer.iter_lines())][-1]["response"] if stream else answer.json()
    assert told["metadata"] == told["tools"][0]["parameters"]["default"] == {"?": ["? x", None, 1.5]}


def test_thoughts_without_an_answer_are_a_turn_of_their_own() -> None:
    """They are not those of the next answer."""
    thoughts = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "So"}]}
    user, spoken = {"role": "user", "content": "?"}, {"role": "assistant", "content": "Yes."}
    body = ResponseRequest.model_validate({"input": [user, thoughts, user, spoken, user]})
    told = [
        (message.role, message.thoughts if isinstance(message, AssistantMessage) else None)
        for message in chat_of(body).messages
    ]
    assert told == [("user", None), ("assistant", "So"), ("user", None), ("assistant", None), ("user", None)]


def test_sampling_beyond_openais(server: Server) -> None:
    body = {"input": ASK, "max_output_tokens": 8}
    more = {"repetition_penalty": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    greedy = server.post("/v1/responses", body | more | {"temperature": 0}).json()["output"]
    chosen = server.post("/v1/responses", body | {"top_k": 1}).json()["output"]
    assert greedy[0]["content"] == chosen[0]["content"]
