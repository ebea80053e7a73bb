"""The web pages that may use the server: its own, and those of the origins that are allowed."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from h2o_server.http.problems import Problem


class Origins(CORSMiddleware):
    """Refuses requests of other pages: browsers send many of them without asking first, and only hide the answer.

    Programs other than browsers send no Origin.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._admits(Headers(scope=scope)):
            await super().__call__(scope, receive, send)
            return
        message = "web pages of other origins may not use this server: its flag --cors-origin lets them in"
        await Problem(403, message, code="cross_origin").response(scope["path"])(scope, receive, send)

    def _admits(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        return (
            origin is None
            or origin.partition("://")[2] == headers.get("host")
            or headers.get("sec-fetch-site") == "same-origin"  # behind a proxy that changes Host
            or self.is_allowed_origin(origin)
        )
