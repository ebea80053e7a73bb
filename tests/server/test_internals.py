"""What of other projects' inner workings the server is built on. pyproject.toml bounds uvicorn for that reason."""

from __future__ import annotations

import asyncio
import inspect
from importlib import metadata
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

import uvicorn
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from h2o_server import app, serve
from h2o_server.http import json_body, protocol

# Methods that the class on the right overrides, and that the library therefore has to call.
OVERRIDDEN = [
    *(
        (HttpToolsProtocol, name, protocol.PatientProtocol)
        for name in (
            "connection_made",
            "data_received",
            "on_message_begin",
            "on_headers_complete",
            "connection_lost",
            "shutdown",
            "send_400_response",
        )
    ),
    (uvicorn.Server, "capture_signals", serve._Server),
    (APIRoute, "get_route_handler", json_body.JsonRoute),
    (Request, "json", json_body._JsonRequest),
    (StaticFiles, "get_response", app._Page),
]

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def lacks(owner: str, name: str, file: str) -> str:
    return (
        f"{owner}.{name} is gone in uvicorn {metadata.version('uvicorn')}, fastapi {metadata.version('fastapi')}, "
        f"starlette {metadata.version('starlette')}: {file} needs it; rewrite that file, or bound the version "
        "in pyproject.toml"
    )


@pytest.mark.parametrize(
    ("base", "name", "ours"), OVERRIDDEN, ids=lambda each: getattr(each, "__name__", each)
)
def test_what_we_override_is_there(base: type, name: str, ours: type) -> None:
    assert callable(getattr(base, name, None)), lacks(base.__name__, name, inspect.getsourcefile(ours) or "")
    assert name in vars(ours)


@pytest.mark.parametrize("ours", sorted({ours for _, _, ours in OVERRIDDEN}, key=lambda ours: ours.__name__))
def test_nothing_else_is_overridden(ours: type) -> None:
    """The list above is whole."""
    inherited = {name for base in ours.__mro__[1:] for name in vars(base)}
    overridden = {name for name in vars(ours) if name in inherited and not name.startswith(("__", "_abc"))}
    assert overridden == {name for _, name, owner in OVERRIDDEN if owner is ours}


def test_uvicorn_has_an_upper_bound() -> None:
    (wanted,) = (each for each in metadata.requires("h2o-edge") or () if each.startswith("uvicorn"))
    assert "<" in wanted, (
        f"pyproject.toml asks for {wanted}: nobody has run the server on the versions to come"
    )


class Pipe(asyncio.Transport):
    """A connection that leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.closing = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing


async def connected(kind: type[HttpToolsProtocol], pipe: Pipe, *more: Any) -> HttpToolsProtocol:
    """A protocol whose application never answers."""

    async def silence(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    config = uvicorn.Config(silence, http="httptools", ws="none", lifespan="off", log_config=None)
    made = kind(*more, config, ServerState(), {})
    made.connection_made(pipe)
    return made


def test_uvicorn_still_calls_what_we_override() -> None:
    """A request, two at once, a client that leaves, and what is no HTTP."""

    async def look() -> None:
        pipe = Pipe()
        ours = await connected(protocol.PatientProtocol, pipe, 30.0, lambda: None)
        assert isinstance(ours, protocol.PatientProtocol)
        assert ours._waiting is not None, "connection_made"
        ours.data_received(REQUEST)
        assert ours._waiting is None, "on_headers_complete"
        first = ours.cycle
        ours.data_received(REQUEST)
        assert pipe.reading, "flow.resume_reading"
        assert ours._cycles == [first, ours.cycle]
        ours.connection_lost(None)
        assert first.disconnected, "connection_lost"
        assert first.message_event.is_set()

        pipe = Pipe()
        ours = await connected(protocol.PatientProtocol, pipe, 30.0, lambda: None)
        ours.data_received(b"\x00\x01\r\n\r\n")
        assert pipe.closing, "send_400_response"
        assert b"invalid_http" in pipe.written
        ours.connection_lost(None)

    asyncio.run(look())


def test_a_server_is_used_as_it_can_be() -> None:
    """should_exit ends it, serve takes sockets, and signals are nobody's but ours."""

    async def look() -> None:
        server = serve._Server(uvicorn.Config("none", lifespan="off", log_config=None))
        assert server.should_exit is False
        assert "sockets" in inspect.signature(server.serve).parameters
        with server.capture_signals():
            pass
        assert "capture_signals" in inspect.getsource(uvicorn.Server.serve), "who else would call it?"

    asyncio.run(look())
