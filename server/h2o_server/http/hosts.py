"""The host names that a server answers to, and the web pages that may use it.

A foreign web page can make its own host name resolve to this machine. Its requests then look like those of the
server's own page, but their header Host always has the foreign name.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from h2o_server.http.problems import Problem
from h2o_server.settings import HOST

ANY = "*"

_HOST = re.compile(rf"({HOST.pattern})(?::([0-9]{{1,5}}))?")


def host_name(value: str) -> str:
    """The name in a Host header, in lower case and without the port. Raises ValueError for an invalid
    header.
    """
    found = _HOST.fullmatch(value)
    if found is None or int(found[2] or 0) > 65535:
        raise ValueError(f"{value!r} is not a host, with or without a port")
    return found[1].lower().removesuffix(".")


class Hosts:
    """A check: refuses requests whose Host is not one of the server's names, and those with none or several."""

    def __init__(self, bound: str, allowed: Collection[str], keys: bool) -> None:
        """bound: the address or name that the server listens on. allowed: further names, or "*" for any.
        keys: whether a key is required: a foreign page has none, so any name is allowed by default.
        """
        self._any = ANY in allowed or (keys and not allowed)
        self._names = {host_name(name) for name in allowed if name != ANY}
        self._local_only = _is_loopback(bound)
        if not self._local_only:
            host = socket.gethostname().lower()
            self._names |= {bound.lower(), host, f"{host.partition('.')[0]}.local"}

    def __call__(self, scope: Scope) -> Problem | None:
        given = [value.decode("latin-1").strip() for name, value in scope["headers"] if name == b"host"]
        if not given and scope["http_version"] == "1.0":
            return None  # HTTP/1.0 has no Host; browsers do not use it
        try:
            (value,) = given
            name = host_name(value)
        except ValueError:
            said = "none" if not given else " and ".join(map(repr, given))
            message = (
                f"a request has one header Host, with a name and perhaps a port, and this one has {said}"
            )
            return Problem(400, message, code="invalid_host")
        if self._any or name in self._names or self._is_own(name):
            return None
        message = (
            f"this server does not answer to the name {name}: use its address, or start it with "
            f"--allowed-host {name}"
        )
        return Problem(403, message, code="unknown_host")

    def _is_own(self, name: str) -> bool:
        """Addresses are safe: only names can be made to resolve to another machine."""
        if name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            address = ip_address(name.strip("[]").partition("%")[0])
        except ValueError:
            return False
        return address.is_loopback or not self._local_only


def _is_loopback(bound: str) -> bool:
    try:
        return ip_address(bound.partition("%")[0]).is_loopback
    except ValueError:
        return bound == "localhost"


class Origins(CORSMiddleware):
    """Refuses requests of other pages: browsers send many of them without asking first, and only hide the answer.

    Programs other than browsers send no Origin.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._admits(Headers(scope=scope)):
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
