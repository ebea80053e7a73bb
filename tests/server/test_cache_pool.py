"""--cache-pool: conversations that take turns are not read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.server.conftest import Serve
from tests.server.running import PATIENCE, Server

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


def test_conversations_take_turns(serve: Serve) -> None:
    server = serve("--cache-pool", 64, "--cache", "paged")
    assert max(taking_turns(server)) < 40
    assert "h2o_waiting_conversations 2.0" in server.get("/metrics").text
    assert 0 < server.metric("h2o_cache_pages_in_use") < server.metric("h2o_cache_pages")


def test_a_conversation_goes_on_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    """With the tokens that were generated, which are others than those that the answer's text is encoded to."""
    talk: list[dict[str, Any]] = [{"role": "user", "content": OPENINGS[0]}]
    expected = 0
    for _ in range(3):
        server = serve("--cache-dir", tmp_path / "conversations", "--prefill", "full")
        request = {"messages": talk, "max_tokens": 40, "temperature": 30, "seed": 1}
        answer = server.post("/v1/chat/completions", request).json()
        words, found = answer["choices"][0]["message"], answer["timings"]
        assert found["cache_n"] == expected
        expected = found["cache_n"] + found["prompt_n"] + found["predicted_n"] - 1
        cut_anew = server.post("/tokenize", {"content": words["content"]}).json()["tokens"]
        assert len(cut_anew) != found["predicted_n"] == 40
        talk += [words, {"role": "user", "content": "And then?"}]
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 143
    assert len(list((tmp_path / "conversations").iterdir())) == 1
