"""Requests that differ in a few early tokens: the answer and the log say where, so that people find the cause."""

from __future__ import annotations

from typing import Any

from tests.server.conftest import Serve
from tests.server.running import Server, wait_for

WORDS = "the quick brown fox jumps over the lazy dog and runs away. " * 12


def test_the_place_and_what_it_costs(serve: Serve) -> None:
    server = serve("--ctx-size", 512, "--slots", 2)

    def details(mark: int, **more: Any) -> dict[str, int]:
        prompt = [*range(300, 320), mark, *range(400, 700), mark]
        answer = server.complete(prompt, max_tokens=1, **more).json()
        found: dict[str, int] = answer["usage"]["prompt_tokens_details"]
        return found

    assert details(5) == {"cached_tokens": 0}
    for mark in (6, 7, 8, 9):  # also where the other slot has the earlier prompt
        found = details(mark)
        assert found["differs_at_token"] == 20
        assert found["read_again_tokens"] == 320 - found["cached_tokens"]
    assert details(9) == {"cached_tokens": 322}
    assert details(10, cache_prompt=False) == {"cached_tokens": 0}
    assert details(10, prefill="full")["cached_tokens"] == 0  # read anew for another reason
    wait_for(lambda: server.log.count("/v1/completions 200") == 8)
    assert server.log.count("the prompt changed at token 20 (other tokens: 1)") == 2  # once a slot


def test_every_api_says_it_and_its_clients_read_it(server: Server, openai: Any, anthropic: Any) -> None:
    ask = [{"role": "user", "content": "What runs?"}]

    def system(day: str) -> str:
        return f"It is {day}. {WORDS}"

    def talk(day: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": system(day)}, *ask]

    server.chat(messages=talk("Monday"))
    chat = openai.chat.completions.create(model="m", messages=talk("Tuesday"), max_tokens=1)
    *_, last = openai.chat.completions.create(
        model="m", messages=talk("Friday"), max_tokens=1, stream=True, stream_options={"include_usage": True}
    )
    response = openai.responses.create(
        model="m", instructions=system("Sunday"), input=ask, max_output_tokens=1
    )
    message = anthropic.messages.create(model="m", system=system("Thursday"), messages=ask, max_tokens=1)
    for found in (
        chat.usage.prompt_tokens_details,
        last.usage.prompt_tokens_details,
        response.usage.input_tokens_details,
        message.usage,
    ):
        assert found.read_again_tokens > 250
        assert 0 < found.differs_at_token < 30
