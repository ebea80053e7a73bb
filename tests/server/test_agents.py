"""Agents: a call, its result, an answer, by the clients that agents are written with.

Each loop runs with a template that knows tools, and with the example's, which knows nothing of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.server import test_messages
from tests.server.conftest import official_client
from tests.server.running import Server
from tests.server.weather import ASK, TALK
from tests.server.weather import CHAT as WEATHER


@pytest.fixture(
    scope="module",
    params=["template with tools", pytest.param("template without", marks=pytest.mark.nightly)],
)
def agent_server(request: pytest.FixtureRequest, tool_bundle: Path, tiny_bundle: Path) -> Iterator[Server]:
    bundle = tiny_bundle if "without" in request.param else tool_bundle
    with Server(bundle, "--ctx-size", 1024, "--slots", 4) as server:
        yield server
        assert "Traceback" not in server.log


@pytest.fixture
def client(agent_server: Server) -> Iterator[Any]:
    with official_client("OpenAI", f"{agent_server.url}/v1") as made:
        yield made


def test_the_model_sees_the_tools(agent_server: Server) -> None:
    def tokens(**more: Any) -> int:
        return int(agent_server.chat(ASK, max_tokens=1, **more).json()["usage"]["prompt_tokens"])

    assert tokens(tools=[WEATHER]) > tokens() + 40
    assert tokens(tools=[WEATHER], tool_choice="required") == tokens(tools=[WEATHER])
    assert tokens(tools=[WEATHER], tool_choice="none") == tokens()


def loop_with_openai(client: Any, stream: bool) -> None:
    """What the client gave goes back as it is."""
    talk: list[Any] = list(TALK)
    asked = {"model": "m", "tools": [WEATHER], "max_tokens": 100, "seed": 1}
    message = answered(client, stream, messages=talk, tool_choice="required", **asked)
    (call,) = message.tool_calls
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"days"}
    talk += [message, {"role": "tool", "tool_call_id": call.id, "content": "281"}]
    message = answered(client, stream, messages=talk, tool_choice="none", **asked)
    assert message.content
    assert not message.tool_calls
    talk += [message, {"role": "user", "content": "And tomorrow?"}]
    assert answered(client, stream, messages=talk, tool_choice="required", **asked).tool_calls


def answered(client: Any, stream: bool, **asked: Any) -> Any:
    """The message of an answer; of a stream, put together as the client's documentation does it."""
    if not stream:
        return client.chat.completions.create(**asked).choices[0].message
    content, calls = "", {}
    for chunk in client.chat.completions.create(**asked, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for piece in delta.tool_calls or []:
            if piece.index not in calls:
                calls[piece.index] = piece
            else:
                calls[piece.index].function.arguments += piece.function.arguments
    return client_message(content, list(calls.values()))


def client_message(content: str, calls: list[Any]) -> Any:
    from openai.types.chat import ChatCompletionMessage

    dumped = [call.model_dump(exclude={"index"}) for call in calls]
    message = {"role": "assistant", "content": content or None, "tool_calls": dumped or None}
    return ChatCompletionMessage.model_validate(message)


def test_loops_of_two_clients_at_a_time(agent_server: Server, client: Any) -> None:
    with official_client("Anthropic", agent_server.url) as other:
        loops = [
            partial(loop_with_openai, client, False),
            partial(loop_with_openai, client, True),
            partial(test_messages.a_loop, other, False),
            partial(test_messages.a_loop, other, True),
        ]
        with ThreadPoolExecutor(4) as pool:
            for running in [pool.submit(loop) for loop in loops]:
                running.result()
    assert all(slot["n_past"] for slot in agent_server.get("/slots").json())


# LangChain, which takes seconds to load and asks by OpenAI's client


def langchain(server: Server, **options: Any) -> Any:
    library = pytest.importorskip("langchain_openai")
    asked = {"model": "m", "api_key": "none", "max_retries": 0, "max_tokens": 100, "seed": 1, **options}
    return library.ChatOpenAI(base_url=f"{server.url}/v1", **asked)


@pytest.mark.nightly
@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_with_langchain(agent_server: Server, stream: bool) -> None:
    model = langchain(agent_server)
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def get_weather(days: int) -> str:
        """How warm it is."""
        return f"281 for {days} days"

    def answer(talk: list[Any], choice: str) -> Any:
        bound = model.bind_tools([get_weather], tool_choice=choice)
        if not stream:
            return bound.invoke(talk)
        first, *rest = bound.stream(talk)
        for chunk in rest:
            first += chunk
        return first

    talk: list[Any] = [HumanMessage(ASK)]
    message = answer(talk, "required")
    (call,) = message.tool_calls
    assert call["name"] == "get_weather"
    assert isinstance(call["args"]["days"], int)
    talk += [message, get_weather.invoke(call)]
    assert isinstance(talk[-1], ToolMessage)
    message = answer(talk, "none")
    assert message.content
    assert not message.tool_calls
    talk += [message, HumanMessage("And tomorrow?")]
    assert answer(talk, "required").tool_calls


@pytest.mark.nightly
def test_langchain_knows_a_prompt_that_does_not_fit(agent_server: Server) -> None:
    model = langchain(agent_server)
    from langchain_core.exceptions import ContextOverflowError

    with pytest.raises(ContextOverflowError):
        model.invoke("word " * 2000)
