"""Answers in HTTP/1.0, which has no chunked encoding: proxies use it, nginx by default."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def unchunked(cycle: RequestResponseCycle) -> Callable[[Any], Awaitable[None]]:
    """The cycle's `send`; if the length is unknown, the end of the connection ends the answer.

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
