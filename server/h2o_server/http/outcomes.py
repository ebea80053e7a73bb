"""Every request gets an answer, and those for an answer of the model are counted once."""

from __future__ import annotations

import logging
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from h2o_server.about.metrics import Metrics
from h2o_server.http.problems import defect, outcome_of

log = logging.getLogger(__name__)

_GONE = 499  # the client disconnected


class Outcomes:
    """Counts a request by its status, unless its `state.counted` says that its jobs do.

    An error that no other code expects becomes a response, so that the connection stays open.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        """paths: where answers are requested."""
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state, started = scope.setdefault("state", {}), False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if not state.get("counted"):
                    self._count(scope, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if started:
                raise  # this ends the connection
            log.critical("%s %r failed", scope["method"], scope["path"], exc_info=error)
            await defect().response(scope["path"])(scope, receive, sending)

    def _count(self, scope: Scope, status: int) -> None:
        if 400 <= status < _GONE:
            self._metrics.invalid()
        elif scope["method"] == "POST" and scope["path"] in self._paths:
            self._metrics.finished("left" if status == _GONE else outcome_of(status))
