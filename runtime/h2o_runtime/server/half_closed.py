"""Clients that send no more, and may have left or still wait for their answers.

To shut down one's own side of a connection and to close it look the same from here, until something is sent: a
machine whose program has gone then answers with a reset. What is sent is what the client gets anyway: the first
bytes of its answer, which are always the same, one at a time, or in a stream the comment that means nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

FILLER = "filler"  # in a request's state: bytes that may be sent between any two parts of its answer

_BEGIN = b"HTTP/1.1 "
_LOOK_EVERY = 0.1  # seconds
_LONGEST = 30.0  # seconds between two probes, which begin with one


class HalfClosed:
    """Watches one connection until all its answers are given, or the client turns out to have left."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        current: Callable[[], RequestResponseCycle | None],
    ) -> None:
        """current: the request that is being answered; None once there is none."""
        self._loop = loop
        self._transport = transport
        self._current = current
        self._pause = 1.0
        self._next = loop.time()  # when to probe
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        cycle = self._current()
        if cycle is None or self._transport.is_closing():
            return
        if self._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
            return
        if self._loop.time() >= self._next:
            self._next, self._pause = self._loop.time() + self._pause, min(2 * self._pause, _LONGEST)
            _probe(cycle)
        self._timer = self._loop.call_later(_LOOK_EVERY, self._look)


def _probe(cycle: RequestResponseCycle) -> None:
    """Send a little of what the client is to get."""
    if not cycle.response_started:
        if not isinstance(cycle.transport, _Begun):
            cycle.transport = _Begun(cycle.transport)  # type: ignore[assignment]
        cycle.transport.begin()  # type: ignore[attr-defined]
        return
    filler: bytes | None = cycle.scope["state"].get(FILLER)
    if filler is not None:
        cycle.transport.write(b"%x\r\n%s\r\n" % (len(filler), filler) if cycle.chunked_encoding else filler)


class _Begun:
    """A transport that has sent the first bytes of an answer before it gets them."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._sent = 0

    def begin(self) -> None:
        """Send one more, while there is one that is certain."""
        self._transport.write(_BEGIN[self._sent : self._sent + 1])
        self._sent = min(self._sent + 1, len(_BEGIN))

    def write(self, data: bytes) -> None:
        sent, self._sent = self._sent, 0
        assert data.startswith(_BEGIN[:sent]), "every answer begins so"
        self._transport.write(data[sent:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
