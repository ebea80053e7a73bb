"""What every request has around it: a path, one line in the log, one outcome in the metrics, and an answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from ipaddress import ip_address

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from h2o_server.about.metrics import Metrics
from h2o_server.http.problems import defect, outcome_of

log = logging.getLogger(__name__)

_QUIET = frozenset({"/health", "/metrics"})  # machines poll these every few seconds
_GONE = 499  # the client disconnected


class Exchange:
    """The first middleware: what comes after it sees paths and methods as they are meant; answers are logged and
    counted.

    A request's outcome is its status, unless its `state.counted` says that its jobs count it. An error that no
    other code expects becomes a response, so that the connection stays open.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        """paths: where answers of the model are requested."""
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        meant, began, status = _as_meant(scope), time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if not meant["state"].get("counted"):
                    self._count(meant, status)
            await send(message)

        try:
            await self._app(meant, receive, sending)
        except Exception as error:
            if status:
                raise  # this ends the connection
            log.critical("%s %r failed", scope["method"], meant["path"], exc_info=error)
            await defect().response(meant["path"])(meant, receive, sending)
        finally:
            _log(scope, status, 1e3 * (time.perf_counter() - began))

    def _count(self, scope: Scope, status: int) -> None:
        if 400 <= status < _GONE:
            self._metrics.finished("invalid")
        elif scope["method"] == "POST" and scope["path"] in self._paths:
            self._metrics.finished("left" if status == _GONE else outcome_of(status))


def _as_meant(scope: Scope) -> Scope:
    """HEAD as GET, as uvicorn drops the body; and paths without empty steps: a base URL and a path are often joined
    with a slash too many.
    """
    path = "/" + "/".join(filter(None, scope["path"].split("/")))
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    return {"state": {}, **scope, "path": path, "method": method}


def _log(scope: Scope, status: int, ms: float) -> None:
    """One line: client, path, outcome and time. Never a header, a query or a body."""
    # As it was sent, percent-encoded: a decoded path could contain a newline.
    path = scope.get("raw_path", b"").decode("ascii", "replace")[:200]
    level = logging.DEBUG if path in _QUIET and status < 500 else logging.INFO
    log.log(level, "%s %s %s %d %.1f ms", _address(scope), scope["method"], path, status, ms)


def _address(scope: Scope) -> str:
    """The client's, or "-". A proxy here names its client in X-Forwarded-For, where any text may stand."""
    client, _ = scope.get("client") or ("", 0)
    try:
        return str(ip_address(client))
    except ValueError:
        return "-"
