"""Pydantic AI's agent, in front of a model that follows a script."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.server.conftest import Serve
from tests.server.scripted import call, script

ANSWER = "It is cold."


@pytest.mark.nightly
def test_a_loop_plain_and_then_streamed(serve: Serve, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    said = [call("get_weather", days=3), ANSWER, call("get_weather", days=4), ANSWER]
    server = serve("--ctx-size", 1024, code=script(said))
    agent = Agent(OpenAIChatModel("m", provider=OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")))
    asked: list[int] = []

    @agent.tool_plain
    def get_weather(days: int) -> str:
        """How warm it is."""
        asked.append(days)
        return f"281 for {days} days"

    first = agent.run_sync("How warm is it in Oslo?")
    assert first.output == ANSWER
    streamed = agent.run_stream_sync("And later?", message_history=first.all_messages())
    assert "".join(streamed.stream_text(delta=True)) == ANSWER
    assert asked == [3, 4]
