"""What of other projects' inner workings the server is built on. pyproject.toml bounds uvicorn for that reason."""

from __future__ import annotations

import inspect
from importlib import metadata

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

import uvicorn
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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
