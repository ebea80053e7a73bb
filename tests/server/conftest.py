"""Servers for black-box tests: one that most tests share, special ones on demand, and OpenAI's client for them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.running import PATIENCE, Server

# What a person would look at twice. "CRITICAL" is how the server tells of its own defects.
_BLEMISHES = ("Traceback", "CRITICAL", "was never awaited", "never retrieved")

TOOL_TEMPLATE = Path(__file__).parent / "tools.jinja"

Serve = Callable[..., Server]


@pytest.fixture(scope="session")
def tool_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example model with a chat template that knows tools."""
    return with_template(tiny_bundle, tmp_path_factory.mktemp("tools") / "tool-llama", TOOL_TEMPLATE)


def with_template(bundle: Path, copy: Path, template: Path | None) -> Path:
    """A copy of the bundle with another chat template, or with none."""
    shutil.copytree(bundle, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest["files"]["chat_template.jinja"]
    for name in ("manifest.json", "chat_template.jinja"):
        (copy / name).unlink()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    if template is not None:
        shutil.copy(template, copy / "chat_template.jinja")
    return copy


@pytest.fixture
def serve(tiny_bundle: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Serve]:
    """`serve("--grace", 9)` starts a server of the example model, ready unless `wait=False`.

    key: what clients must send
    """
    started: list[Server] = []

    def start(
        *flags: object, bundle: Path = tiny_bundle, wait: bool = True, key: str = "", **options: Any
    ) -> Server:
        if key:
            (tmp_path / "keys").write_text(key)
            flags = (*flags, "--api-key-file", tmp_path / "keys")
        server = Server(bundle, *flags, **options)
        started.append(server)
        if wait:
            server.wait_until_ready()
        return server

    yield start
    for server in started:
        server.stop()
        request.node.add_report_section("teardown", "h2o-serve", server.log)


@pytest.fixture(scope="session")
def shared_server(tool_bundle: Path) -> Iterator[Server]:
    with Server(tool_bundle, "--ctx-size", 512) as server:
        yield server


@pytest.fixture
def server(shared_server: Server, request: pytest.FixtureRequest) -> Iterator[Server]:
    """One server for all tests of a worker: context 512, tools, nothing else but defaults.

    Whatever a test did, the server has not failed after it and says nothing of a defect.
    """
    before = len(shared_server.log)
    yield shared_server
    log = shared_server.log[before:]
    request.node.add_report_section("teardown", "h2o-serve", log)
    assert shared_server.get("/health").status_code == 200
    assert not [blemish for blemish in _BLEMISHES if blemish in log], log


def official_client(name: str, url: str) -> Any:
    """OpenAI's or Anthropic's own client. It reads no certificates, which would take 20 ms."""
    library = pytest.importorskip(name.lower())
    options = {"base_url": url, "api_key": "none", "max_retries": 0, "timeout": PATIENCE}
    return vars(library)[name](**options, http_client=library.DefaultHttpxClient(verify=False))


@pytest.fixture
def anthropic(server: Server) -> Iterator[Any]:
    """Anthropic's own client, talking to the shared server."""
    with official_client("Anthropic", server.url) as client:
        yield client


@pytest.fixture
def openai(server: Server) -> Iterator[Any]:
    """The official client, talking to the shared server."""
    with official_client("OpenAI", f"{server.url}/v1") as client:
        yield client
