"""Paths as clients write them: a base URL and a path are often joined with a slash too many."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class Paths:
    """Drops empty steps of a request's path, so that `//v1/models/` is `/v1/models` to all code behind it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": "/" + "/".join(filter(None, scope["path"].split("/")))}
        await self._app(scope, receive, send)
