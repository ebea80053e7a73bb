"""A request that fails before it runs is answered, counted once, and leaves no process of a grammar behind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.server.running import Server, error_of, request, wait_for
from tests.server.test_hostile_schemas import family

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
USER = [{"role": "user", "content": "Hello."}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
GRAMMAR = 'root ::= "a" | "b"'
FORCED = {
    "messages": USER,
    "max_tokens": 4,
    "tools": [{"name": "f", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any"},
}
SHAPES = [{}, {"stream": True}, {"n": 2}]

CONSTRAINED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
    (CHAT, {"tools": [TOOL], "tool_choice": "required"}),
    (CHAT, {"json_schema": SCHEMA}),
    (TEXT, {"grammar": GRAMMAR}),
]

# Defects of the server's own, one at each step between a body and the scheduler.
DEFECTS = {
    "translation": "from h2o_server.apis import routes as where\nwhere.chat_of_message = fail",
    "choices": "from h2o_server.request_builder import RequestBuilder as where\nwhere.chat = fail",
    "grammar": "from h2o_server.answers.grammar import Grammar as where\nwhere.compile = fail",
    "constraint": "from h2o_server import request_handler as where\nwhere.replace = fail_with_constraint",
    "jobs": "from h2o_server import request_handler as where\nwhere.Jobs = fail",
    "start": "from h2o_server.scheduling.scheduler import Scheduler as where\nwhere.start = fail",
}
FAIL = """
import dataclasses
def fail(*arguments, **named):
    raise RuntimeError("planted")
def fail_with_constraint(value, **named):
    return fail() if "constraint" in named else dataclasses.replace(value, **named)
"""


def asked(path: str, **more: Any) -> dict[str, Any]:
    return ({"messages": USER} if path != TEXT else {"prompt": "x"}) | {"max_tokens": 4} | more


def outcomes(server: Server) -> dict[str, float]:
    found = re.findall(
        r'^h2o_requests_total{outcome="(\w+)"} (\S+)$', server.get("/metrics").text, re.MULTILINE
    )
    return {name: float(count) for name, count in found if float(count)}


def grammars(server: Server) -> list[psutil.Process]:
    """The processes of grammars, without the one that forks them."""
    return [one for one in family(server)[1:] if one.ppid() != server.process.pid]


@pytest.mark.parametrize("more", SHAPES, ids=str)
@pytest.mark.parametrize(("path", "constraint"), CONSTRAINED, ids=str)
def test_an_answer_with_a_grammar_cannot_ignore_its_end(
    server: Server, path: str, constraint: dict[str, Any], more: dict[str, Any]
) -> None:
    before = outcomes(server)
    error = error_of(server.post(path, asked(path, ignore_eos=True, **constraint, **more)), 400)
    assert error["param"] == "ignore_eos"
    assert outcomes(server) == before | {"invalid": before.get("invalid", 0) + 1}
    assert not grammars(server)


@pytest.fixture(scope="module", params=DEFECTS)
def defective(tool_bundle: Path, request: Any) -> Iterator[Server]:
    with Server(tool_bundle, "--ctx-size", 512, code=FAIL + DEFECTS[request.param]) as server:
        yield server


def test_a_defect_is_an_answer_an_outcome_and_a_release(defective: Server) -> None:
    for count, stream in enumerate((False, True), 1):
        answer = defective.post(MESSAGES, FORCED | {"stream": stream})
        assert '"error"' in answer.text
        assert answer.status_code == 500 or (stream and answer.status_code == 200)
        assert outcomes(defective) == {"failed": count}
    wait_for(lambda: not grammars(defective))
    defective.wait_until_idle()
    assert "planted" in defective.log


def test_the_connection_of_a_defect_serves_the_next_request(defective: Server) -> None:
    with defective.connection(20) as connected:
        for _ in range(3):
            connected.sendall(
                request("POST", MESSAGES, json.dumps(FORCED).encode()) + request("GET", "/health")
            )
            told = b""
            while b'{"status":"ok"}' not in told:
                told += connected.recv(65536)
            assert told.startswith(b"HTTP/1.1 500 ")
