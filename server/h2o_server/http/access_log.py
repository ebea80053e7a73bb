"""One line for each request: client, path, outcome and time. Never a header, a query or a body."""

from __future__ import annotations

import logging
import time
from ipaddress import ip_address

from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

_QUIET = frozenset({"/health", "/metrics"})  # machines poll these every few seconds


class AccessLog:
    """Logs each request once it is over."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            # As it was sent, percent-encoded: a decoded path could contain a newline.
            path = scope.get("raw_path", b"").decode("ascii", "replace")[:200]
            level = logging.DEBUG if path in _QUIET and status < 500 else logging.INFO
            ms = 1e3 * (time.perf_counter() - began)
            log.log(level, "%s %s %s %d %.1f ms", _address(scope), scope["method"], path, status, ms)


def _address(scope: Scope) -> str:
    """The client's, or "-". A proxy here names its client in X-Forwarded-For, where any text may stand."""
    client, _ = scope.get("client") or ("", 0)
    try:
        return str(ip_address(client))
    except ValueError:
        return "-"
