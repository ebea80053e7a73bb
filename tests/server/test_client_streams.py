"""Streams: the same text as in one piece, cut where it may be cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.running import Server

SEEDS = [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (3, 4))]
# Read anew each time: a prompt that goes on from its own rows has other rounding.
ANEW = {"cache_prompt": False}
CHAT = {"messages": [{"role": "user", "content": "Tell me about 東京 and naïve cafés 😀."}], **ANEW}
# Most of this vocabulary's rare tokens are single bytes: hot sampling makes parts of characters all the time.
HOT = {"temperature": 3.0, "max_tokens": 40, "ignore_eos": True}


def chunks(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    """All events of a stream but [DONE], which must be there."""
    told = list(server.streamed(path, body))
    assert told[-1] == "[DONE]"
    assert "[DONE]" not in told[:-1]
    return told[:-1]


def chat_text(told: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content") or "" for chunk in told for choice in chunk["choices"] if choice
    )


def completion_text(told: list[Any]) -> str:
    return "".join(choice["text"] for chunk in told for choice in chunk["choices"])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="plain"),
        pytest.param(HOT, id="hot"),
        pytest.param({"stop": ["e", "\n\n", " the"], "max_tokens": 40}, id="stops"),
        pytest.param({**HOT, "stop": ["é", "0", "東", "\ufffd", "ing"]}, id="hot-stops"),
        pytest.param(
            {"tools": [{"type": "function", "function": {"name": "f"}}], "max_tokens": 30}, id="tools"
        ),
        pytest.param({"response_format": {"type": "json_object"}, "max_tokens": 40}, id="json"),
    ],
)
def test_a_streamed_chat_is_the_plain_one(server: Server, seed: int, more: dict[str, Any]) -> None:
    body = {**CHAT, "seed": seed, "temperature": 1.0, "max_tokens": 24, **more}
    plain = server.post("/v1/chat/completions", body).json()
    told = chunks(server, "/v1/chat/completions", body)
    assert chat_text(told) == (plain["choices"][0]["message"]["content"] or "")
    assert told[-1]["choices"][0]["finish_reason"] == plain["choices"][0]["finish_reason"]
    assert told[-1]["h2o"] == plain["h2o"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "more", [{}, HOT, {**HOT, "stop": ["a", "\ufffd", "  "]}], ids=["plain", "hot", "stops"]
)
def test_a_streamed_completion_is_the_plain_one(server: Server, seed: int, more: dict[str, Any]) -> None:
    body = {
        "prompt": "naïve 東",
        "seed": seed,
        "temperature": 1.0,
        "max_tokens": 24,
        "logprobs": 2,
        **ANEW,
        **more,
    }
    plain = server.post("/v1/completions", body).json()["choices"][0]
    told = chunks(server, "/v1/completions", body)
    assert completion_text(told) == plain["text"]
    joined: dict[str, list[Any]] = {}
    for chunk in told:
        for name, values in chunk["choices"][0]["logprobs"].items():
            joined.setdefault(name, []).extend(values)
    assert joined == plain["logprobs"]


@pytest.mark.parametrize("tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("seed", SEEDS)
def test_streamed_logprobs_are_the_plain_ones(server: Server, seed: int, tools: bool) -> None:
    body = {**CHAT, **HOT, "seed": seed, "logprobs": True, "top_logprobs": 1}
    if tools:  # an answer may begin with blanks and be no call after all: its first tokens are told late
        blank = server.post("/tokenize", {"content": "  "}).json()["tokens"][0]
        body |= {
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "temperature": 1.0,
            "logit_bias": {str(blank): 7},
        }
    plain = server.post("/v1/chat/completions", body).json()["choices"][0]
    told = chunks(server, "/v1/chat/completions", body)
    streamed = [
        entry for chunk in told for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == plain["logprobs"]["content"]


def test_the_first_delta_has_the_role_and_the_last_nothing_but_the_reason(server: Server) -> None:
    told = chunks(server, "/v1/chat/completions", {**CHAT, "max_tokens": 5, "seed": 1})
    deltas = [chunk["choices"][0]["delta"] for chunk in told]
    assert deltas[0]["role"] == "assistant"
    assert all("role" not in delta for delta in deltas[1:])
    assert deltas[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in told]
    assert reasons == [None] * (len(told) - 1) + ["length"]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in told}) == 1
    assert told[0]["object"] == "chat.completion.chunk"


def test_usage_is_told_when_asked_for_in_a_chunk_without_choices(server: Server) -> None:
    body = {**CHAT, "max_tokens": 5, "seed": 1}
    assert all("usage" not in chunk for chunk in chunks(server, "/v1/chat/completions", body))
    told = chunks(server, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert [chunk["choices"] for chunk in told if chunk.get("usage")] == [[]]
    assert told[-1]["usage"]["completion_tokens"] == 5
    told = chunks(
        server, "/v1/completions", {"prompt": "x", "max_tokens": 2, "stream_options": {"include_usage": True}}
    )
    assert told[-1]["choices"] == []
    assert told[-1]["usage"]["total_tokens"] == told[-1]["usage"]["prompt_tokens"] + 2


def test_the_official_clients_helper_accumulates_a_stream(openai: Any) -> None:
    asked = {"model": "m", "messages": CHAT["messages"], "max_tokens": 8, "seed": 4}
    plain = openai.chat.completions.create(**asked).choices[0].message.content
    with openai.chat.completions.stream(**asked, stop=plain[-2:]) as stream:  # it dislikes a cut answer
        final = stream.get_final_completion()
    assert final.choices[0].message.content == plain.partition(plain[-2:])[0]


def raw_lines(server: Server, body: dict[str, Any]) -> Iterator[bytes]:
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        yield from b"".join(response.iter_bytes()).split(b"\n\n")


@pytest.mark.parametrize("seed", range(8))
def test_no_event_ends_inside_a_character(server: Server, seed: int) -> None:
    """Bytes of characters, one a token: each event by itself is UTF-8, and all together are the whole text."""
    ids = server.post("/tokenize", {"content": "東京😀é"}).json()["tokens"]
    bias = {str(token): 30.0 for token in ids}
    body = {
        "prompt": "東京😀é東京",
        "max_tokens": 40,
        "temperature": 5.0,
        "seed": seed,
        "logit_bias": bias,
        "stream": True,
        "ignore_eos": True,
        **ANEW,
    }
    pieces = []
    for line in raw_lines(server, body):
        if line.startswith(b"data: {"):
            pieces.append(json.loads(line[6:].decode("utf-8"))["choices"][0]["text"])
    del body["stream"]
    assert "".join(pieces) == server.post("/v1/completions", body).json()["choices"][0]["text"]
    assert any(ord(character) > 0x7F for character in "".join(pieces))


@pytest.mark.parametrize("length", [1, 3, 8])
def test_nothing_of_a_stop_string_gets_out(server: Server, length: int) -> None:
    """Every part of an answer as the stop string: what was streamed ends before it, wherever tokens are cut."""
    body = {"prompt": "import numpy as np\n", "max_tokens": 20, "temperature": 0}
    whole = server.post("/v1/completions", body).json()["choices"][0]["text"]
    for begin in range(0, len(whole) - length, 3):
        stop = whole[begin : begin + length]
        told = chunks(server, "/v1/completions", {**body, "stop": [stop]})
        assert completion_text(told) == whole.partition(stop)[0]
        assert told[-1]["choices"][0]["finish_reason"] == "stop"
