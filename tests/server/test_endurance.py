"""One server handles all of it, good and bad, and is afterwards as fast and as small as before."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import time
from typing import Any

import pytest
from tests.server.conftest import Serve
from tests.server.running import Server, request

pytestmark = pytest.mark.timeout(600)

MOST_GROWTH = 0.02
CHAT = "/v1/chat/completions"
TEXT = "The quick brown fox jumps over the lazy dog. "
TOOL = {"type": "function", "function": {"name": "f"}}
USER = {"role": "user", "content": TEXT}


def good(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """A request that is answered."""
    size = dice.choice([1, 5, 20, 45, 90])
    limits = {
        "max_tokens": dice.choice([0, 1, 8, 30]),
        "seed": dice.randrange(1000),
        "stream": dice.random() < 0.5,
    }
    sparse = {"chunk_size": 128, "local": 16, "heavy": 32, "heads": dice.choice(["kv", "query"])}
    more: dict[str, Any] = dice.choice(
        [
            {},
            {"prefill": sparse},
            {"prefill": {"policy": "full"}},
            {"stop": ["e", "\n"], "top_k": 40, "min_p": 0.1},
            {"repetition_penalty": 1.3, "presence_penalty": 1, "logit_bias": {"5": -2}},
        ]
    )
    if dice.random() < 0.5:
        return "/v1/completions", {"prompt": TEXT * size, "logprobs": 3, **limits, **more}
    extra = dice.choice(
        [
            {},
            {"logprobs": True, "top_logprobs": 5},
            {"response_format": {"type": "json_object"}},
            {"tools": [TOOL], "tool_choice": "required"},
        ]
    )
    return CHAT, {"messages": [{"role": "user", "content": TEXT * size}], **limits, **more, **extra}


BAD: list[tuple[str, bytes]] = [
    (CHAT, b"{"),
    (CHAT, b"[" * 100_000),
    (CHAT, b'{"messages": "' + b"x" * 500_000 + b'"}'),
    (CHAT, json.dumps({"messages": [USER], "temperature": "hot"}).encode()),
    (CHAT, json.dumps({"messages": [USER], "x" * 100_000: 1}).encode()),
    (CHAT, json.dumps({"messages": [USER] * 2000, "stream": True}).encode()),
    (CHAT, json.dumps({"messages": [USER], "prefill": {"heavy": 9999}}).encode()),
    (
        CHAT,
        json.dumps(
            {
                "messages": [USER],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"enum": [str(i) for i in range(100_000)]}},
                },
            }
        ).encode(),
    ),
    ("/v1/completions", json.dumps({"prompt": [1] * 100_000}).encode()),
    ("/v1/completions", json.dumps({"prompt": "x", "repetition_penalty": 1e-300}).encode()),
    ("/v1/completions", b'{"prompt": "\xff"}'),
    ("/detokenize", json.dumps({"tokens": [*range(50_000), "x"]}).encode()),
]


def leave(server: Server, dice: random.Random) -> None:
    """A client that goes away somewhere on the way."""
    body = {"prompt": TEXT * dice.choice([1, 90]), "max_tokens": 1500, "stream": dice.random() < 0.5}
    raw = request("POST", "/v1/completions", json.dumps(body).encode())
    with server.connection() as connected:
        connected.sendall(raw[: dice.choice([10, 100, len(raw), len(raw)])])
        if dice.random() < 0.5:
            connected.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                connected.recv(100)


def round_of_everything(server: Server, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(6):
        path, body = good(dice)
        response = server.post(path, body)
        assert response.status_code == 200, response.text
        assert not body["stream"] or response.text.endswith("data: [DONE]\n\n")
    for path, raw in BAD:
        assert 400 <= server.post(path, raw).status_code < 500, raw[:200]
    for _ in range(10):
        leave(server, dice)
    for path in ("/metrics", "/props", "/nothing", "/v1/models", "/static/../x", "/"):
        server.get(path)
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    for connection in idle:
        connection.close()
    server.wait_until_idle()


@pytest.mark.slow
def test_after_all_of_it_the_server_is_what_it_was(serve: Serve) -> None:
    """Afterwards memory varies by a few MiB. So the maximum of four rounds is compared with the minimum of
    the next four.
    """
    server = serve("--ctx-size", 2048, fresh=True)
    looks = []
    for seed in range(10):
        round_of_everything(server, seed)
        looks.append(resident(server))
    warm, after = max(looks[2:6]), min(looks[6:10])
    began = time.monotonic()
    answer = server.chat()
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] > 0
    assert time.monotonic() < began + 10
    assert after < warm * (1 + MOST_GROWTH), [f"{look / 2**20:.1f} MiB" for look in looks]
    assert not re.search(r"/v1/\S+ 500 ", server.log)
    assert "Traceback" not in server.log


def resident(server: Server) -> float:
    """With the cache and the memory sets of one and the same request; the least of several looks."""
    looks = []
    for _ in range(5):
        assert server.complete(TEXT * 90, max_tokens=1).status_code == 200
        looks.append(server.metric("h2o_resident_memory_bytes"))
        time.sleep(0.1)
    return min(looks)
