"""Random requests, several at once: no 5xx, one outcome for each, and no process or descriptor is left.

`--requests N` asks for more; a failure names the seed, which gives the same requests.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from tests.server.random_requests import ANSWERS, Asked, Draw
from tests.server.running import PATIENCE, Server, events, request, wait_for

CLIENTS = 6
ROUND = 25  # requests after which the server is looked at

_ACCESS = re.compile(r" POST (/\S+) ([1-5]\d\d) [\d.]+ ms$", re.MULTILINE)
KINDS = {"one slot": ("--slots", 1), "three slots": ("--slots", "3 piece=64", "--cache", "paged")}


@pytest.fixture(scope="module", params=[pytest.param("one slot", marks=pytest.mark.nightly), "three slots"])
def crowded(tool_bundle: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    flags = ("--ctx-size", 512, "--limits", "queue=100", *KINDS[request.param])
    with Server(tool_bundle, *flags, fresh=True) as server:
        assert server.chat(response_format={"type": "json_object"}).status_code == 200  # its process is there
        yield server


class Held:
    """Processes and descriptors of an idle server, whose clients have all left."""

    def __init__(self, server: Server) -> None:
        self._me = psutil.Process(server.process.pid)

    def look(self) -> tuple[int, int]:
        return len(self._me.children(recursive=True)), self._me.num_fds()


def send(server: Server, asked: Asked) -> str | None:
    """Ask, and wait for the answer unless the client leaves → what is wrong with it, if anything."""
    body = json.dumps(asked.body).encode()
    if asked.leaves:
        with server.connection() as connected:
            connected.sendall(request("POST", asked.path, body))
            time.sleep(0.01 * (len(body) % 5))
        return None
    with server.client() as client:
        answer = client.post(asked.path, content=body, headers={"Content-Type": "application/json"})
    if answer.status_code >= 500:
        return f"{answer.status_code} {answer.text[:300]}"
    if answer.headers["content-type"].startswith("text/event-stream"):
        for told in events(iter(answer.text.splitlines())):
            error = told.get("error") if isinstance(told, dict) else None
            if error and error["type"] != "invalid_request_error":
                return f"in a stream: {error}"
    return None


def counted(server: Server) -> int:
    found = re.findall(
        r'^h2o_requests_total{outcome="\w+"} (\S+)$', server.get("/metrics").text, re.MULTILINE
    )
    return round(sum(map(float, found)))


def asked_for(server: Server) -> int:
    """Requests that have an outcome, by the log: all for an answer, of others those that are invalid."""
    lines = _ACCESS.findall(server.log)
    return sum(path in ANSWERS or 400 <= int(status) < 499 for path, status in lines)


def outcomes_are_right(server: Server) -> bool:
    return counted(server) == asked_for(server)


@pytest.mark.timeout(3600)
def test_whatever_is_asked_the_server_is_well(crowded: Server, pytestconfig: pytest.Config) -> None:
    held = Held(crowded)
    crowded.http.close()
    crowded._http = None
    before = held.look()
    rounds = range(pytestconfig.getoption("--requests") // ROUND // len(KINDS))
    for seed in rounds:
        draw = Draw(seed)
        wanted = [draw.request() for _ in range(ROUND)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            wrong = [
                (one, fault)
                for one, fault in zip(wanted, pool.map(lambda one: send(crowded, one), wanted), strict=True)
                if fault
            ]
        assert not wrong, f"seed {seed}: {wrong[0]}\n{crowded.log[-4000:]}"
        crowded.wait_until_idle()
        wait_for(lambda: outcomes_are_right(crowded), PATIENCE)
        crowded.http.close()
        crowded._http = None
        wait_for(lambda: held.look() <= before and held.look()[1] <= before[1], PATIENCE)
        assert "Traceback" not in crowded.log, f"seed {seed}:\n{crowded.log[-4000:]}"
