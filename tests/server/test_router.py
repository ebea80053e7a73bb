"""Two servers behind SGLang's model gateway, which knows nothing of us.

Conversations stay where they are cached, and a server that is lost or stops takes no later request with it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.conftest import Serve
from tests.server.running import PATIENCE, Server, free_port, wait_for

pytest.importorskip("smg")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONVERSATIONS, TURNS = 6, 3

Route = Callable[..., httpx.Client]


@pytest.fixture
def route(tmp_path: Path) -> Iterator[Route]:
    """`route(servers)` starts the gateway before some servers and gives a client of it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(servers: list[Server], *flags: object) -> httpx.Client:
        port, metrics = free_port(), free_port()
        command = [
            Path(sys.executable).with_name("smg"),
            "launch",
            "--worker-urls",
            *(one.url for one in servers),
        ]
        command += ["--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics, *flags]
        with (tmp_path / "smg.log").open("wb") as log:
            started.append(subprocess.Popen([str(word) for word in command], stdout=log, stderr=log))
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, trust_env=False)

        def ready() -> bool:
            try:
                told = client.get("/workers").json()
            except (httpx.TransportError, ValueError):
                return False
            return sum(bool(worker.get("is_healthy")) for worker in told["workers"]) == len(servers)

        wait_for(ready)
        return client

    yield start
    for process in started:
        process.kill()
        process.wait()


def chat(client: httpx.Client, messages: list[dict[str, Any]], **more: Any) -> httpx.Response:
    body = {
        "model": "m",
        "messages": messages,
        "max_tokens": 8,
        "temperature": 0,
        "prefill": {"policy": "full"},
    }
    return client.post("/v1/chat/completions", json=body | more)


def served(server: Server) -> float:
    return sum(server.metric("h2o_requests_total", outcome=outcome) for outcome in ("stop", "length"))


def test_conversations_stay_where_they_are_cached(serve: Serve, route: Route) -> None:
    servers = [serve("--alias", "m", "--ctx-size", 1024, "--cache-pool", 64) for _ in range(2)]
    client = route(servers, "--policy", "cache_aware")
    talks = [
        [{"role": "user", "content": f"{number} things: " + f"word{number} " * 40}]
        for number in range(CONVERSATIONS)
    ]
    stayed = 0
    for turn in range(TURNS):
        for talk in talks:
            answer = chat(client, talk).json()
            stayed += turn > 0 and answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 40
            talk.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            talk.append({"role": "user", "content": "And then?"})
    assert stayed >= 0.9 * CONVERSATIONS * (TURNS - 1)
    assert sum(map(served, servers)) == CONVERSATIONS * TURNS
    assert min(map(served, servers)) > 0


def test_a_server_that_is_killed_takes_only_its_own_request_with_it(serve: Serve, route: Route) -> None:
    servers = [serve("--alias", "m", "--ctx-size", 8192) for _ in range(2)]
    client = route(servers, "--policy", "round_robin")
    body = {"model": "m", "prompt": "Once", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        killed = next(one for one in servers if one.metric("h2o_busy"))
        killed.process.kill()
        began = time.monotonic()
        assert any('"error"' in line for line in lines), "its client is told"
        assert time.monotonic() - began < 5
    for _ in range(6):
        assert chat(client, [{"role": "user", "content": "Hello."}]).status_code == 200
