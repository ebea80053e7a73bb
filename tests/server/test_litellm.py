"""Three servers behind LiteLLM's proxy, as examples/fleet configures it: one that is lost is not missed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.server.conftest import Serve
from tests.server.running import ROOT, Server, free_port, wait_for

LITELLM = shutil.which("litellm")
pytestmark = [
    pytest.mark.skipif(
        LITELLM is None, reason="LiteLLM's proxy is not installed: pip install 'litellm[proxy]'"
    ),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

REQUESTS = 12
PATIENCE = 300.0  # seconds until the proxy has imported itself


@pytest.fixture
def servers(serve: Serve) -> list[Server]:
    return [serve("--alias", "m", "--ctx-size", 2048) for _ in range(3)]


@pytest.fixture
def client(servers: list[Server], tmp_path: Path) -> Iterator[httpx.Client]:
    """Of the proxy, which knows the servers in the place of the example's devices."""
    config = yaml.safe_load((ROOT / "examples" / "fleet" / "litellm.yaml").read_text())
    for deployment, server in zip(config["model_list"], servers, strict=True):
        deployment["litellm_params"]["api_base"] = f"{server.url}/v1"
    (tmp_path / "litellm.yaml").write_text(yaml.safe_dump(config))
    port, key = free_port(), f"sk-{secrets.token_hex(32)}"
    own = {
        "LITELLM_MASTER_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it asks the internet for prices
    }
    with (tmp_path / "litellm.log").open("wb") as log:
        process = subprocess.Popen(
            [str(LITELLM), "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)],
            cwd=tmp_path,
            env=os.environ | own,
            stdout=log,
            stderr=log,
        )
    headers = {"Authorization": f"Bearer {key}"}
    client = httpx.Client(
        base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE, trust_env=False
    )

    def ready() -> bool:
        assert process.poll() is None, (tmp_path / "litellm.log").read_text()
        try:
            return client.get("/health/readiness").status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_for(ready, PATIENCE)
        yield client
    finally:
        process.kill()
        process.wait()


def body(tokens: int = 4, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello."}]
    return {"model": "m", "messages": messages, "max_tokens": tokens, **more}


def ask(client: httpx.Client) -> int:
    return client.post("/v1/chat/completions", json=body()).status_code


def served(server: Server) -> float:
    return sum(server.metric("h2o_requests_total", outcome=outcome) for outcome in ("stop", "length"))


@contextmanager
def streaming(
    client: httpx.Client, servers: list[Server], tokens: int
) -> Iterator[tuple[Server, Iterator[str]]]:
    """An answer that one of the servers is giving: which one, and the lines that follow."""
    asked = body(tokens, stream=True, ignore_eos=True)
    with client.stream("POST", "/v1/chat/completions", json=asked) as response:
        lines = (line for line in response.iter_lines() if line)
        assert next(lines).startswith("data: ")
        yield next(one for one in servers if one.metric("h2o_busy")), lines


def test_a_server_that_is_lost_or_stops_is_not_missed(servers: list[Server], client: httpx.Client) -> None:
    assert [ask(client) for _ in range(REQUESTS)] == [200] * REQUESTS
    assert sum(map(served, servers)) == REQUESTS
    assert sum(served(one) > 0 for one in servers) > 1, "several have a share"

    with streaming(client, servers, 1900) as (lost, lines):
        lost.process.kill()
        began = time.monotonic()
        with suppress(httpx.RemoteProtocolError):  # which tells its client too
            assert any('"error"' in line for line in lines), "its client is told"
        assert time.monotonic() - began < 5
    left = [one for one in servers if one is not lost]
    assert [ask(client) for _ in range(REQUESTS)] == [200] * REQUESTS

    with streaming(client, left, 400) as (leaving, lines):
        leaving.process.send_signal(signal.SIGTERM)
        assert list(lines)[-1] == "data: [DONE]"
    (last,) = (one for one in left if one is not leaving)
    before = served(last)
    assert [ask(client) for _ in range(REQUESTS)] == [200] * REQUESTS
    assert leaving.process.wait(PATIENCE) == 143
    assert served(last) == before + REQUESTS
