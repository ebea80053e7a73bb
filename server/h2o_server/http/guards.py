"""Checks before a request reaches its handler: API key, body size, and room in the queue.

ASGI middleware without a framework: a full queue must refuse hundreds of clients within milliseconds, while
the inference thread takes all the processor time it gets.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Collection, Sequence

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from h2o_server.http.problems import Problem, unavailable
from h2o_server.http.room import Room
from h2o_server.request_handler import RequestHandler
from h2o_server.settings import RequestLimits

_OPEN = frozenset({"/", "/health"})  # the page asks for the key itself
_CLOSE = {"Connection": "close"}  # the rest of the body is not read
_SMALL = 64 << 10  # bytes of a body that are always accepted: as many are in buffers anyway

Check = Callable[[Scope], Problem | None]


class Gate:
    """Refuses a request with the first problem that its checks find."""

    def __init__(self, app: ASGIApp, checks: Sequence[Check]) -> None:
        self._app, self._checks = app, checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = next((problem for check in self._checks if (problem := check(scope)) is not None), None)
        answer = self._app if problem is None else problem.response(scope["path"])
        await answer(scope, receive, send)


def authorization(keys: Sequence[str]) -> Check:
    """Admits requests with an API key; /health and the page's own files are open."""
    known = [key.encode() for key in keys]

    def check(scope: Scope) -> Problem | None:
        if not known or _is_open(scope) or _has_key(scope, known):
            return None
        return Problem(
            401,
            "the API key is missing or wrong: send the header Authorization: Bearer KEY, or x-api-key: KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    return check


def _is_open(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] == "GET" and (path in _OPEN or path.startswith("/static/"))


def _has_key(scope: Scope, keys: Sequence[bytes]) -> bool:
    headers = Headers(scope=scope)
    scheme, _, given = headers.get("authorization", "").partition(" ")
    sent = [given] if scheme.lower() == "bearer" else []
    sent += headers.getlist("x-api-key")[:1]
    tried = [key_sent.strip().encode("utf-8", "replace") for key_sent in sent]
    # All keys are compared, so that the time reveals nothing about a nearly correct key.
    matches = [hmac.compare_digest(candidate, key) for candidate in tried for key in keys]
    return any(matches)


def admission(handler: RequestHandler, paths: Collection[str]) -> Check:
    """Refuses a request for an answer at once if the queue is full, before its body is read.

    paths: where answers are requested
    """

    def check(scope: Scope) -> Problem | None:
        if scope["method"] == "POST" and scope["path"] in paths:
            try:
                handler.check()
            except Problem as problem:
                return problem
        return None

    return check


class BodyLimits:
    """Refuses requests whose body is too long or too slow, or does not fit in the memory for bodies.

    A body's size is reserved from its arrival to the end of its request, in one budget for all bodies.
    """

    def __init__(
        self, app: ASGIApp, limits: RequestLimits, room: Callable[[str], Room], idle: Callable[[], object]
    ) -> None:
        """room: limits of one body for a path. idle: called when the last large body has gone."""
        self._app = app
        self._limits = limits
        self._room = room
        self._idle = idle
        self._reserved = 0  # bytes of bodies
        self._large = False  # when freed memory was last returned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = Headers(scope=scope).get("content-length", "0")
        room = self._room(scope["path"])
        if length.isdecimal() and int(length) > room.body_bytes:
            problem = room.too_long(self._limits.body_bytes)
            await problem.response(scope["path"])(scope, receive, send)
            return
        body = _Limited(receive, room, self._limits, self._take)
        try:
            await self._app(scope, body, send)
        finally:
            self._reserved -= body.taken
            if self._large and self._reserved <= _SMALL:
                self._large = False
                self._idle()

    def _take(self, size: int, taken: int) -> None:
        """Reserve `size` more bytes for a body that has `taken`. Raises Problem if the budget is spent."""
        if taken + size > _SMALL:
            self._large = True
            if self._reserved + size > self._limits.memory_bytes:
                raise unavailable(
                    f"the bodies of all requests together may take {self._limits.memory_bytes} bytes: try again "
                    "later, or start the server with a larger --limits memory=MIB",
                    1,
                    "memory_budget",
                )
        self._reserved += size


class _Limited:
    """A request's `receive` with limits: it raises Problem. After the body it waits for the client to
    disconnect."""

    def __init__(
        self, receive: Receive, room: Room, limits: RequestLimits, take: Callable[[int, int], None]
    ) -> None:
        """take: called with the size of a block and the size of what came before it."""
        self._receive = receive
        self._room = room
        self._limits = limits
        self._take = take
        self._deadline = time.monotonic() + limits.body_timeout
        self._complete = False
        self.taken = 0

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            # Not asyncio.wait_for: it yields even if the body is already there, and many requests would be
            # admitted before the first of them fills the queue.
            with anyio.fail_after(self._deadline - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise Problem(
                408,
                f"the body did not arrive within {self._limits.body_timeout:g} s: try again, or start the server "
                "with a larger --limits body_timeout=SECONDS",
                code="body_timeout",
                headers=_CLOSE,
            ) from None
        size = len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self.taken + size > self._room.body_bytes:
            raise self._room.too_long(self._limits.body_bytes)
        self._take(size, self.taken)
        self.taken += size
        return message
