"""Many clients and one slot."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from tests.server.conftest import Serve
from tests.server.running import Pace, Server, error_of, wait_for

SLOW_TILES = """
import time
from h2o_runtime.execution.forward import Forward
dense = Forward.dense
def slow(self, *args):
    if len(args[1]) > 1:
        time.sleep(0.5)
    return dense(self, *args)
Forward.dense = slow
"""


def ask(server: Server, number: int) -> httpx.Response:
    """On a connection of its own."""
    body = {"prompt": f"Client {number}", "max_tokens": 20, "ignore_eos": True}
    with server.client() as client:
        return client.post("/v1/completions", json=body)


def test_sixty_clients_at_once(serve: Serve) -> None:
    server = serve("--limits", "queue=8")
    with ThreadPoolExecutor(60) as pool:
        answers = list(pool.map(lambda number: ask(server, number), range(60)))
        answered = [answer for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert len(answered) >= 9  # one in the slot and eight in the queue; more when some were done in time
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        assert all(error_of(answer, 503)["code"] == "queue_full" for answer in refused)
        wait_for(lambda: server.metric("h2o_requests_total", outcome="length") == len(answered))
        assert server.metric("h2o_requests_total", outcome="refused") == len(refused)
        # No ticket is lost: the queue takes as many as before.
        again = pool.map(lambda number: ask(server, number), range(9))
        assert [answer.status_code for answer in again] == [200] * 9


def test_who_waits_too_long_is_refused(serve: Serve, tmp_path: Path) -> None:
    pace = Pace(tmp_path)
    server = serve("--limits", "queue_timeout=0.5", code=pace.code)
    pace.hold()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(ask, server, 0)
        wait_for(lambda: server.metric("h2o_busy") == 1)
        others = list(pool.map(lambda number: ask(server, number), (1, 2)))
        assert [error_of(answer, 503)["code"] for answer in others] == ["queue_timeout"] * 2
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in others)
        pace.go()
        assert first.result().status_code == 200


def test_a_long_silence_is_no_dead_connection(serve: Serve) -> None:
    impatient = "from h2o_server.scheduling import job_events\njob_events._QUIET = 0.2\n"
    server = serve(code=SLOW_TILES + impatient)
    text = server.complete([7] * 500, stream=True).text
    assert text.count(": keep-alive\n\n") >= 3  # six layers of half a second
    assert text.endswith("data: [DONE]\n\n")
