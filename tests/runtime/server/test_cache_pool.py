"""--cache-pool: conversations that take turns are not read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.runtime.server.conftest import Serve
from tests.runtime.server.running import Server

DOCUMENT = "The module defines a class. " * 30
QUESTIONS = ["Which class does it define, and why? " * 9, "Who calls the module, and from where? " * 9]
OPENINGS = [DOCUMENT + QUESTIONS[0], "Another file is about numbers. " * 30, DOCUMENT + QUESTIONS[1]]


def taking_turns(server: Server) -> list[int]:
    """Tokens that each turn after the first had to read."""
    read = []
    talks: list[list[dict[str, Any]]] = [[{"role": "user", "content": opening}] for opening in OPENINGS]
    for turn in range(3):
        for talk in talks:
            body = {"messages": talk, "max_tokens": 8, "prefill": {"policy": "full"}}
            answer = server.post("/v1/chat/completions", body).json()
            talk += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
            if turn:
                read.append(answer["timings"]["prompt_n"])
    return read


@pytest.mark.parametrize("cache", ["contiguous", "paged"])
def test_conversations_take_turns(cache: str, serve: Serve) -> None:
    server = serve("--cache-pool", 64, "--cache", cache)
    assert max(taking_turns(server)) < 40
    metrics = server.get("/metrics").text
    assert "h2o_waiting_conversations 2.0" in metrics
    if cache == "paged":
        assert 0 < server.metric("h2o_cache_pages_in_use") < server.metric("h2o_cache_pages")
    server.stop()
    if cache == "contiguous":
        assert min(taking_turns(serve())) > 100


def test_a_conversation_goes_on_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    talk: list[dict[str, Any]] = [{"role": "user", "content": OPENINGS[0]}]
    read = []
    for _ in range(2):
        server = serve("--cache-dir", tmp_path / "conversations", "--prefill", "full")
        request = {
            "messages": talk,
            "max_tokens": 8,
            "temperature": 0,
        }  # an answer that reads back as it was written
        answer = server.post("/v1/chat/completions", request).json()
        read.append(answer["timings"]["prompt_n"])
        talk += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        server.process.terminate()
        assert server.process.wait(60) == 0
    assert read[0] > 100
    assert read[1] < 40
    assert len(list((tmp_path / "conversations").iterdir())) == 1
