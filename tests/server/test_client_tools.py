"""Tool calls, as the official client asks for them and reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, Field
from tests.server.weather import CHAT as WEATHER
from tests.server.weather import TALK as ASK

CLOCK = {"type": "function", "function": {"name": "clock"}}


def check_weather(function: Any) -> None:
    assert function.name == "get_weather"
    arguments = json.loads(function.arguments)
    assert set(arguments) == {"days"}
    assert 1 <= arguments["days"] <= 9


def test_a_named_tool_is_called_among_several(openai: Any) -> None:
    answer = openai.chat.completions.create(
        model="m",
        messages=ASK,
        tools=[WEATHER, CLOCK],
        tool_choice={"type": "function", "function": {"name": "clock"}},
        max_tokens=100,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "clock"
    assert json.loads(call.function.arguments) == {}


def test_required_calls_any_of_several(openai: Any) -> None:
    names = set()
    for seed in range(8):
        answer = openai.chat.completions.create(
            model="m",
            messages=ASK,
            tools=[WEATHER, CLOCK],
            tool_choice="required",
            seed=seed,
            temperature=2,
            max_tokens=100,
        )
        (call,) = answer.choices[0].message.tool_calls
        names.add(call.function.name)
    assert names == {"get_weather", "clock"}


def test_the_official_clients_own_parsing(openai: Any) -> None:
    import openai as library

    class Clock(BaseModel):
        zone: int = Field(ge=0, le=23)  # bounded: a model without sense writes digits without end

    parsed = openai.chat.completions.parse(
        model="m",
        messages=ASK,
        tools=[library.pydantic_function_tool(Clock)],
        tool_choice="required",
        max_tokens=100,
    )
    assert isinstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, Clock)


def test_an_answer_that_is_no_call_is_text(openai: Any) -> None:
    answer = openai.chat.completions.create(
        model="m", messages=ASK, tools=[WEATHER], tool_choice="auto", max_tokens=10, temperature=0
    )
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("limit", [1, 12])
def test_a_call_that_was_cut_is_a_part_of_one(openai: Any, limit: int) -> None:
    asked = {"model": "m", "messages": ASK, "tools": [WEATHER], "tool_choice": "required", "seed": 0}
    whole = openai.chat.completions.create(**asked, max_tokens=100).choices[0].message.tool_calls[0].function
    (cut,) = openai.chat.completions.create(**asked, max_tokens=limit).choices
    (call,) = cut.message.tool_calls
    assert cut.finish_reason == "length"
    assert cut.message.content is None
    assert call.function.name == "get_weather"
    assert whole.arguments.startswith(call.function.arguments)
    assert call.function.arguments != whole.arguments
    *_, before, last = openai.chat.completions.create(**asked, max_tokens=limit, stream=True)
    assert before.choices[0].delta.tool_calls
    assert last.choices[0].finish_reason == "length"


def test_the_arguments_of_the_plain_call_stream_in_pieces(openai: Any) -> None:
    asked = {"messages": ASK, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 100, "seed": 1}
    plain = openai.chat.completions.create(model="m", **asked).choices[0].message.tool_calls[0].function
    check_weather(plain)
    chunks = list(openai.chat.completions.create(model="m", **asked, stream=True))
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    first, *rest = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert (first.function.name, first.function.arguments, first.type) == ("get_weather", "", "function")
    assert first.id
    assert len(rest) > 3
    assert all(piece.id is None and piece.function.name is None for piece in rest)
    assert "".join(piece.function.arguments for piece in rest) == plain.arguments


def test_logprobs_of_a_call(openai: Any) -> None:
    asked = {"model": "m", "messages": ASK, "tools": [WEATHER], "tool_choice": "required", "seed": 2}
    plain = openai.chat.completions.create(**asked, logprobs=True, max_tokens=100)
    told = plain.choices[0].logprobs.content
    assert len(told) == plain.usage.completion_tokens
    stream = openai.chat.completions.create(**asked, logprobs=True, max_tokens=100, stream=True)
    streamed = [
        entry
        for chunk in stream
        for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    assert [(one.token, one.logprob) for one in streamed] == [(one.token, one.logprob) for one in told]
