"""What every request passes before it reaches its handler: who asks, how much, and whether there is room.

ASGI middleware without a framework: a full queue has to be told hundreds of clients within milliseconds, while
the inference thread takes all the processor time it gets.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Sequence

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from h2o_runtime.server.problems import Problem
from h2o_runtime.server.request_handler import RequestHandler

ANSWERS = frozenset({"/v1/chat/completions", "/v1/completions"})
_OPEN = frozenset({"/", "/health"})  # the page asks for the key itself
_CLOSE = {"Connection": "close"}  # what is left of the body is not read


class Authorization:
    """Lets in who knows an API key; /health and the page's own files are open."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or self._open(scope) or self._known(scope):
            await self._app(scope, receive, send)
            return
        problem = Problem(
            401,
            "the API key is missing or wrong: send the header Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await problem.response()(scope, receive, send)

    def _open(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return scope["method"] in ("GET", "HEAD") and (path in _OPEN or path.startswith("/static/"))

    def _known(self, scope: Scope) -> bool:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        sent = given.strip().encode("utf-8", "replace")
        # All are compared, so that the time tells nothing about which one was nearly right.
        matches = [hmac.compare_digest(sent, key) for key in self._keys]
        return scheme.lower() == "bearer" and any(matches)


class Admission:
    """Refuses a request for an answer at once when the queue is full, before its body is looked at."""

    def __init__(self, app: ASGIApp, handler: RequestHandler) -> None:
        self._app = app
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in ANSWERS:
            try:
                self._handler.check()
            except Problem as problem:
                self._handler.count_refused(problem)
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimits:
    """Ends requests whose body is too long or takes too long to come."""

    def __init__(self, app: ASGIApp, most_bytes: int, seconds: float) -> None:
        self._app = app
        self._most = most_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdecimal() and int(length) > self._most:
            await self._too_long().response()(scope, receive, send)
            return
        await self._app(scope, _Limited(receive, self._most, self._seconds, self._too_long), send)

    def _too_long(self) -> Problem:
        message = (
            f"the body is longer than {self._most} bytes: send less, or start the server with --max-body"
        )
        return Problem(413, message, code="body_too_long", headers=_CLOSE)


class _Limited:
    """A request's `receive` that raises Problem; once the body is there it only waits for the client to leave."""

    def __init__(self, receive: Receive, most: int, seconds: float, too_long: Callable[[], Problem]) -> None:
        self._receive = receive
        self._left = most
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._too_long = too_long
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            # Not asyncio.wait_for: it lets others go first even when the body is there already, and a crowd
            # of requests would all be let in before the first of them fills the queue.
            with anyio.fail_after(self._deadline - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise Problem(
                408,
                f"the body did not arrive within {self._seconds:g} s",
                code="body_timeout",
                headers=_CLOSE,
            ) from None
        self._left -= len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._left < 0:
            raise self._too_long()
        return message
