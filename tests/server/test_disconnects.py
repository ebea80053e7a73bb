"""Clients that leave, at every stage of a request: the slot is free again, and the next one is answered."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.running import Server, request, wait_for

# Each of these would keep the slot busy for many seconds, if nobody stopped it.
LONG_ANSWER = {"prompt": "Once", "max_tokens": 16_000, "ignore_eos": True}
LONG_PROMPT = {"prompt": [7] * 15_000, "max_tokens": 16, "prefill": {"policy": "full", "batch_size": 64}}
LONG_TEXT = {"prompt": "word " * 100_000, "max_tokens": 1}  # too long, which its tokenization finds out
SOON = 30.0  # a busy machine's moment


@pytest.fixture(scope="module")
def roomy(tiny_bundle: Path) -> Iterator[Server]:
    with Server(tiny_bundle, "--ctx-size", 16_384) as server:
        yield server


@pytest.fixture(autouse=True)
def _still_well(roomy: Server) -> Iterator[None]:
    """After each test the server is idle and answers soon, and no defect is in its log."""
    before = len(roomy.log)
    yield
    began = time.monotonic()
    wait_for(lambda: busy(roomy) == (0, 0), SOON)
    wait_for(lambda: roomy.chat().status_code == 200, SOON)  # requests that nobody waits for may still arrive
    assert time.monotonic() < began + SOON
    log = roomy.log[before:]
    assert "Traceback" not in log, log
    assert not re.search(r"/v1/\S+ 500 ", log), log


def busy(server: Server) -> tuple[float, float]:
    return server.metric("h2o_busy"), server.metric("h2o_queue_length")


def outcomes(server: Server, *names: str) -> float:
    return sum(server.metric("h2o_requests_total", outcome=name) for name in names)


def completion(**body: Any) -> bytes:
    return request("POST", "/v1/completions", json.dumps(body).encode())


def leave(connected: socket.socket, abruptly: bool) -> None:
    if abruptly:  # a reset instead of a farewell
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connected.close()


@pytest.mark.parametrize("sent", [0, 20, -40, -1])
def test_before_the_request_ends(roomy: Server, sent: int) -> None:
    with roomy.connection() as connected:
        connected.sendall(completion(**LONG_ANSWER)[:sent])
        time.sleep(0.1)
        leave(connected, abruptly=True)
    assert busy(roomy) == (0, 0)


def test_while_the_text_is_tokenized(roomy: Server) -> None:
    with roomy.connection() as connected:
        connected.sendall(completion(**LONG_TEXT))
        time.sleep(0.02)
        leave(connected, abruptly=True)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_in_the_queue(roomy: Server, stream: bool) -> None:
    left = outcomes(roomy, "left")
    with roomy.connection() as first, roomy.connection() as second, roomy.connection() as third:
        first.sendall(completion(**LONG_ANSWER, stream=True))
        first.recv(1)
        second.sendall(completion(**LONG_ANSWER, stream=stream))
        wait_for(lambda: busy(roomy) == (1, 1))
        third.sendall(completion(prompt="x", max_tokens=1))
        wait_for(lambda: busy(roomy) == (1, 2))
        leave(second, abruptly=True)
        wait_for(lambda: busy(roomy) == (1, 1), SOON)
        wait_for(lambda: outcomes(roomy, "left") == left + 1)
        leave(first, abruptly=True)
        assert third.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("body", [LONG_PROMPT, LONG_ANSWER], ids=["prompt", "answer"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("how", ["close", "reset", "send no more", "pipeline"])
def test_while_it_is_served(roomy: Server, body: dict[str, Any], stream: bool, how: str) -> None:
    ended = outcomes(roomy, "cancelled")
    tokens = roomy.metric("h2o_predicted_tokens_total")
    with roomy.connection() as connected:
        raw = completion(**body, stream=stream)
        connected.sendall(raw * (2 if how == "pipeline" else 1))
        wait_for(lambda: busy(roomy)[0] == 1)
        if stream and body is LONG_ANSWER:
            assert connected.recv(1000)
        time.sleep(0.1)
        if how == "send no more":
            connected.shutdown(socket.SHUT_WR)
        else:
            leave(connected, abruptly=how != "close")
        wait_for(lambda: busy(roomy) == (0, 0), SOON)
    wait_for(lambda: outcomes(roomy, "cancelled") > ended)
    assert body is LONG_ANSWER or roomy.metric("h2o_predicted_tokens_total") == tokens


def test_a_client_that_never_reads_its_stream_and_then_leaves(roomy: Server) -> None:
    """Its answer waits in buffers; nobody else's does."""
    with roomy.connection() as connected:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connected.sendall(completion(prompt="x", max_tokens=500, ignore_eos=True, stream=True, logprobs=20))
        wait_for(lambda: busy(roomy)[0] == 0)
        assert roomy.chat().status_code == 200


def test_many_at_once(roomy: Server) -> None:
    connections = [socket.create_connection(("127.0.0.1", roomy.port)) for _ in range(60)]
    for index, connected in enumerate(connections):
        raw = completion(**LONG_ANSWER, stream=bool(index % 2))
        connected.sendall(raw[: len(raw) - (index % 3 == 0)])
    wait_for(lambda: busy(roomy)[0] == 1)
    for index, connected in enumerate(connections):
        leave(connected, abruptly=index % 4 < 2)


def whole(connected: socket.socket) -> bytes:
    return b"".join(iter(lambda: connected.recv(65536), b""))


def test_a_part_of_a_request_has_no_answer_to_wait_for(roomy: Server) -> None:
    for cut in (10, 60, -3):
        with roomy.connection(SOON) as connected:
            connected.sendall(completion(prompt="x")[:cut])
            connected.shutdown(socket.SHUT_WR)
            assert whole(connected) == b""
