"""SIGTERM while clients of every kind are served: each is answered, or told that it is not."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import httpx
from tests.server.conftest import Serve
from tests.server.running import PATIENCE, Server, wait_for

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Once", "max_tokens": 40, "ignore_eos": True}),
    ("/v1/completions", {"prompt": [5] * 300, "max_tokens": 60, "ignore_eos": True, "stream": True}),
    ("/v1/completions", {"prompt": "Twice", "max_tokens": 20, "n": 3, "stream": True}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 9, "n": 2, "json_schema": {"type": "boolean"}}),
    ("/v1/embeddings", {"input": ["a river", "a hill"] * 4}),
]


class Crowd:
    """Clients that ask again and again, until the server does not answer any more."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.answered = 0
        self.refused: list[str] = []
        self.wrong: list[str] = []
        self.stopped = threading.Event()  # the signal was sent
        self._threads = [threading.Thread(target=self._ask, args=one) for one in [*KINDS, *KINDS]]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def _ask(self, path: str, body: dict[str, Any]) -> None:
        with self._server.client() as client:
            for _ in range(1000):
                try:
                    self._take(body, client.post(path, json=body))
                except httpx.TransportError as error:
                    if not self.stopped.is_set():
                        self.wrong.append(repr(error))
                    return

    def _take(self, body: dict[str, Any], response: httpx.Response) -> None:
        if response.status_code == 503:
            self.refused.append(response.json()["error"]["code"])
            time.sleep(0.05)
        elif response.status_code == 200 and response.text.endswith("[DONE]\n\n") == ("stream" in body):
            self.answered += 1
        else:
            self.wrong.append(response.text)


def test_all_that_are_served_are_answered(serve: Serve) -> None:
    """Those that wait are refused, and nobody's connection breaks before an answer has come."""
    server = serve(
        "--ctx-size", 512, "--slots", 3, "--cache", "paged", "--grace", PATIENCE, "--limits", "queue=4"
    )
    crowd = Crowd(server)
    wait_for(lambda: crowd.answered >= len(KINDS))
    crowd.stopped.set()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 143
    crowd.join()
    assert not crowd.wrong
    assert "shutting_down" in crowd.refused
    assert set(crowd.refused) <= {"shutting_down", "queue_full"}
    assert "Traceback" not in server.log
    assert "before its end" not in server.log
