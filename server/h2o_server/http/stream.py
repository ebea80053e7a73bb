"""Server-sent events, and detection of clients that disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")

# Not ends of lines to JSON, but to Python, with which many clients read lines.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
KEEP_ALIVE = ": keep-alive\n\n"


class ClientGone(Exception):  # noqa: N818 - nobody's fault
    """The client closed its connection before the end of its answer."""


def event(value: dict[str, Any]) -> str:
    """One event, named by its type if it has one; nothing in its JSON could end its line early."""
    name = f"event: {value['type']}\n" if "type" in value else ""
    data = json.dumps(value, ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS)
    return f"{name}data: {data}\n\n"


async def disconnected(receive: Receive) -> None:
    """Returns when the client has left. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """The result of `work`. If the client disconnects first, cancels the work and raises ClientGone."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        leaving.cancel()
        task.cancel()


class EventStream(Response):
    """Sends events as they arrive. `gone` is called when the client leaves, and at the end in any case."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], gone: Callable[[], None]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-store"
        self.headers["x-accel-buffering"] = "no"  # a proxy that buffers events would prevent streaming
        self._events = events
        self._gone = gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(disconnected(receive))
        leaving.add_done_callback(lambda task: self._gone())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for text in self._events:
                body = text.encode("utf-8", "replace")
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            leaving.cancel()
            self._gone()
