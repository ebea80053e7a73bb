"""uvicorn's HTTP protocol with two manners more: it does not wait for ever, and its errors have our shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from h2o_runtime.server.problems import Problem


def protocol_factory(header_timeout: float) -> Callable[..., asyncio.Protocol]:
    """A protocol that ends connections whose request line and headers do not arrive in time."""

    def make(*args: Any, **options: Any) -> asyncio.Protocol:
        return PatientProtocol(header_timeout, *args, **options)

    return make


class PatientProtocol(HttpToolsProtocol):
    """Patient, but not endlessly."""

    def __init__(self, header_timeout: float, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._header_timeout = header_timeout
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        problem = Problem(400, "this is not HTTP/1.1 as the server understands it", code="invalid_http")
        body = json.dumps(problem.body()).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _wait(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(self._header_timeout, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
