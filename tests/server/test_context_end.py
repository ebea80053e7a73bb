"""Answers that would go on at the end of the context: a limit above it is no error, and the end is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.server.running import Server

CONTEXT = 512  # of the shared server
WORDS = "The quick brown fox jumps. " * 36
LARGE = 200_000  # what coding agents ask for


@pytest.fixture(scope="module")
def question() -> dict[str, str]:
    return {"role": "user", "content": WORDS}


def ended(server: Server, path: str, body: dict[str, Any], stream: bool) -> list[dict[str, Any]]:
    """The answer, or the events of its stream."""
    answer = server.post(path, {"model": "m", "temperature": 0, "stream": stream, **body})
    assert answer.status_code == 200, answer.text
    if not stream:
        return [answer.json()]
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limit", [LARGE, -1, None])
def test_a_chat(server: Server, question: dict[str, str], limit: int | None, stream: bool) -> None:
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    body = {"messages": [question], "max_tokens": limit, "ignore_eos": True, **usage}
    found = ended(server, "/v1/chat/completions", body, stream)
    reasons = [choice["finish_reason"] for one in found for choice in one["choices"]]
    assert reasons[-1] == "length"
    assert found[-1]["usage"]["total_tokens"] in (CONTEXT, CONTEXT + 1)  # the last token needs no row


@pytest.mark.parametrize("stream", [False, True])
def test_a_response(server: Server, question: dict[str, str], stream: bool) -> None:
    found = ended(server, "/v1/responses", {"input": [question], "max_output_tokens": LARGE}, stream)
    if stream:
        assert found[-1]["type"] == "response.incomplete"
    response = found[-1]["response"] if stream else found[-1]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["total_tokens"] in (CONTEXT, CONTEXT + 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("limit", "reason"), [(LARGE, "model_context_window_exceeded"), (2, "max_tokens")])
def test_a_message(server: Server, question: dict[str, str], limit: int, reason: str, stream: bool) -> None:
    found = ended(server, "/v1/messages", {"messages": [question], "max_tokens": limit}, stream)
    told = next(one["delta"] for one in found if one["type"] == "message_delta") if stream else found[0]
    assert told["stop_reason"] == reason


def test_a_prompt_that_fills_the_context_has_one_token(server: Server) -> None:
    answer = server.complete([7] * CONTEXT, max_tokens=LARGE, ignore_eos=True).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 1
