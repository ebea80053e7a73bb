"""A stricter version of uvicorn's HTTP protocol. Reads and waits have limits, errors have our format, HTTP/1.0
clients get answers that they can read, and the server notices if a client with several open requests disconnects.

A client that closes its sending side counts as disconnected, as in most servers and proxies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from h2o_server.http.problems import Problem, unavailable


def protocol_factory(header_timeout: float, refused: Callable[[], None]) -> Callable[..., asyncio.Protocol]:
    """A protocol that ends connections whose request line and headers do not arrive in time.

    refused: called for each 4xx that no application sees.
    """

    def make(*args: Any, **options: Any) -> asyncio.Protocol:
        return PatientProtocol(header_timeout, refused, *args, **options)

    return make


_MOST_HEAD = 64 << 10  # bytes of a request line and headers
_MOST_AT_ONCE = 16  # unanswered requests after which a connection is not read


class PatientProtocol(HttpToolsProtocol):
    """Waits for a request with a time limit."""

    def __init__(
        self, header_timeout: float, refused: Callable[[], None], *args: Any, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._refused = refused
        self._header_timeout = header_timeout
        self._waiting: asyncio.TimerHandle | None = None  # for the end of the headers
        self._head = 0  # bytes of headers so far
        self._cycles: list[RequestResponseCycle] = []  # requests without a complete answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head = self._head + len(data) if self._waiting else 0
        if self._head > _MOST_HEAD and not self.transport.is_closing():
            self._refuse(Problem(431, f"the headers are longer than {_MOST_HEAD} bytes", code="invalid_http"))

    def on_message_begin(self) -> None:
        self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            self.cycle.send = _unchunked(self.cycle)  # type: ignore[assignment, method-assign]
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        self._cycles.append(self.cycle)
        if 1 < len(self._cycles) <= _MOST_AT_ONCE:
            self.flow.resume_reading()  # uvicorn cannot see that a client disconnects while it does not read

    def shutdown(self) -> None:
        """Tell a client that is still sending its request; uvicorn would wait for the rest of it."""
        if self.cycle is not None and self.cycle.more_body and not self.cycle.response_started:
            self._end_with(unavailable("the server is shutting down", code="shutting_down"))
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        for cycle in self._cycles:  # uvicorn only notifies the last one
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, "this is not HTTP/1.1 as the server understands it", code="invalid_http"))

    def _refuse(self, problem: Problem) -> None:
        self._refused()
        self._end_with(problem)

    def _end_with(self, problem: Problem) -> None:
        body = json.dumps(problem.body()).encode()
        head = (
            f"HTTP/1.1 {problem.status_code} {HTTPStatus(problem.status_code).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
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


def _unchunked(cycle: RequestResponseCycle) -> Callable[[Any], Awaitable[None]]:
    """The `send` of a client of HTTP/1.0, which knows no chunks: proxies use it, nginx by default. If the length is
    unknown, the end of the connection ends the answer.

    uvicorn closes the connection after such an answer. It counts bytes, so it gets the length of each part.
    """
    send = cycle.send
    unsized = False

    async def sending(message: Any) -> None:
        nonlocal unsized
        if message["type"] == "http.response.start":
            unsized = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if unsized:
                cycle.chunked_encoding = False
        elif unsized:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return sending
