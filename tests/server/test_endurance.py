"""One server handles all of it, good and bad, and is afterwards as fast and as small as before."""

from __future__ import annotations

import re
import time

import pytest
from tests.server.conftest import Serve
from tests.server.random_requests import CHAT, Draw
from tests.server.running import Server
from tests.server.test_random_requests import send

pytestmark = [pytest.mark.timeout(600), pytest.mark.nightly]

MOST_GROWTH = 0.02
TEXT = "The quick brown fox jumps over the lazy dog. "


def round_of_everything(server: Server, seed: int, requests: int) -> None:
    """Random requests, of whose clients some leave, and bodies that cost much until they are refused."""
    draw = Draw(seed)
    for asked in (draw.request() for _ in range(requests)):
        assert send(server, asked) is None
    for body in (b"[" * 100_000, b'{"messages": "' + b"x" * 500_000 + b'"}', b'{"prompt": "\xff"}'):
        assert 400 <= server.post(CHAT, body).status_code < 500
    server.wait_until_idle()


def test_after_all_of_it_the_server_is_what_it_was(serve: Serve) -> None:
    """Afterwards memory varies by a few MiB. So the maximum of four rounds is compared with the minimum of
    the next four.
    """
    server = serve("--ctx-size", 2048, fresh=True)
    looks = []
    for seed in range(10):
        round_of_everything(server, seed, requests=30)
        looks.append(resident(server))
    warm, after = max(looks[2:6]), min(looks[6:10])
    began = time.monotonic()
    answer = server.chat()
    assert answer.status_code == 200
    assert time.monotonic() < began + 10
    assert after < warm * (1 + MOST_GROWTH), [f"{look / 2**20:.1f} MiB" for look in looks]
    assert not re.search(r"/v1/\S+ 500 ", server.log)
    assert "Traceback" not in server.log


def resident(server: Server) -> float:
    """With the cache and the memory sets of one and the same request; the least of several looks."""
    looks = []
    for _ in range(3):
        assert server.complete(TEXT * 30, max_tokens=1).status_code == 200
        looks.append(server.metric("h2o_resident_memory_bytes"))
        time.sleep(0.1)
    return min(looks)
