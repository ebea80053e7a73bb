"""The worst requests and plain ones at once: plain ones are answered, and then the server is what it was."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import quantiles

import psutil
import pytest
from tests.server.conftest import Serve
from tests.server.running import Server, request
from tests.server.test_hostile_bodies import CASES, Watcher, case
from tests.server.test_hostile_schemas import HOSTILE, asking

CLIENTS = 20
HEALTH = 1.0  # seconds that 95 of 100 answers stay below, on two cores that have more to do than they can
STALL = 8.0  # seconds for the slowest: the system may leave a process waiting, the server never does
MEMORY = 400 << 20  # bytes of all processes, beyond those of the idle server

# How many of each, and one of each body; a schema takes two seconds of a core until it is refused.
SCHEMAS = 1
LEAVERS = 3
REBOUND = 3
PLAIN = 12


def of_a_body(name: str) -> Callable[[Server], None]:
    path, body, statuses = case(name)

    def ask(server: Server) -> None:
        with server.client() as client:
            answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in statuses | {503}, (name, answer.text[:200])

    return ask


def of_a_schema(number: int) -> Callable[[Server], None]:
    body = {"messages": [{"role": "user", "content": "x"}], **asking(HOSTILE[number % len(HOSTILE)])}

    def ask(server: Server) -> None:
        with server.client() as client:
            assert client.post("/v1/chat/completions", json=body).status_code in (400, 503)

    return ask


def leave(server: Server) -> None:
    body = {"prompt": [7] * 8000, "max_tokens": 190, "ignore_eos": True, "stream": True}
    with server.connection() as connected:
        connected.sendall(request("POST", "/v1/completions", json.dumps(body).encode()))
        time.sleep(0.05)


def rebind(server: Server) -> None:
    with server.client(headers={"Host": "evil.example"}) as client:
        assert client.get("/props").status_code == 403


def plain(server: Server) -> None:
    with server.client() as client:
        body = {
            "messages": [{"role": "user", "content": "Hello."}],
            "max_tokens": 4,
            "seed": 1,
        }  # not empty by chance
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"]


def everything() -> list[Callable[[Server], None]]:
    hostile = [of_a_body(name) for name in CASES]
    hostile += [of_a_schema(number) for number in range(SCHEMAS)] + [leave] * LEAVERS + [rebind] * REBOUND
    mixed = hostile + [plain] * PLAIN
    random.Random(0).shuffle(mixed)
    return mixed


def memory(server: Server) -> int:
    me = psutil.Process(server.process.pid)
    return sum(one.memory_info().rss for one in [me, *me.children(recursive=True)])


@pytest.mark.slow
def test_every_plain_request_is_answered(serve: Serve) -> None:
    server = serve("--limits", f"queue={CLIENTS}", "--slots", 4, "--cache", "paged", fresh=True)
    plain(server)
    server.chat(**asking({"type": "null"}))
    idle = memory(server)
    with Watcher(server) as watcher, ThreadPoolExecutor(CLIENTS) as pool:
        for asked in [pool.submit(ask, server) for ask in everything()]:
            asked.result()
    assert watcher.statuses == {200}
    assert quantiles(watcher.seconds, n=20)[-1] < HEALTH
    assert watcher.slowest < STALL
    server.wait_until_idle()
    plain(server)
    time.sleep(1)  # memory is given back once nobody is served
    assert memory(server) < idle + MEMORY
    assert not [line for line in server.log.splitlines() if " 500 " in line or "Traceback" in line]
