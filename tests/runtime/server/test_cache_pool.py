"""--cache-pool: conversations that take turns are not read again."""

from __future__ import annotations

from typing import Any

from tests.runtime.server.conftest import Serve
from tests.runtime.server.running import Server

OPENINGS = ["The module defines a class. " * 30, "Another file is about numbers. " * 30]


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


def test_two_conversations_take_turns(serve: Serve) -> None:
    server = serve("--cache-pool", 64)
    assert max(taking_turns(server)) < 40
    metrics = server.get("/metrics").text
    assert "h2o_waiting_conversations 1.0" in metrics
    server.stop()
    assert min(taking_turns(serve())) > 100
