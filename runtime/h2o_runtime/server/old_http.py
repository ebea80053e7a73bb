"""Answers to HTTP/1.0, which knows no chunks: proxies speak it, nginx unless it is told otherwise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def unchunked(cycle: RequestResponseCycle) -> Callable[[Any], Awaitable[None]]:
    """The cycle's `send`, but where a length is not known, the connection's end is the answer's.

    uvicorn closes the connection after such an answer, and counts bytes: it is told the length of each part.
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
