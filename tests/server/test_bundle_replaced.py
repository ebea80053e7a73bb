"""What becomes of a server whose bundle is written into, replaced or removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.server.conftest import Serve
from tests.server.running import Pace, Server, error_of
from tests.server.test_lifecycle import long_stream

SCHEMA = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}


@pytest.fixture
def served(tiny_bundle: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_bundle, tmp_path / "served")


def cut(served: Path) -> None:
    for file in (served / "onnx" / "weights").iterdir():
        os.truncate(file, 0)


def copied_over(served: Path, bundle: Path) -> None:
    """As `cp -r BUNDLE/. served/` does."""
    for file in (file for file in bundle.rglob("*") if file.is_file()):
        (served / file.relative_to(bundle)).write_bytes(file.read_bytes())


@pytest.mark.parametrize("how", ["cut", "copied over"])
def test_a_bundle_that_is_written_into_ends_answers_and_not_the_server(
    serve: Serve, tiny_bundle: Path, served: Path, tmp_path: Path, how: str
) -> None:
    server = serve(bundle=served, code=Pace(tmp_path, 0.02).code)
    stream = long_stream(server, max_tokens=4000)
    next(stream)
    if how == "cut":
        cut(served)
    else:
        copied_over(served, tiny_bundle)
    told = list(stream)
    assert told[-1]["error"]["code"] == "bundle_changed"  # type: ignore[index]
    for refused in (server.complete(), server.get("/health")):
        error = error_of(refused, 503)
        assert error["code"] == "bundle_changed"
        assert "was written into" in error["message"]
        assert "restart the server" in error["message"]
    server.process.terminate()
    assert server.process.wait(60) == 143
    assert "Traceback" not in server.log


def answers_everything(server: Server) -> None:
    assert server.complete().status_code == 200
    assert server.post("/v1/embeddings", {"input": "A river"}).status_code == 200
    shaped = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    assert server.chat(response_format=shaped, max_tokens=20).status_code == 200
    assert server.get("/health").status_code == 200


def test_a_removed_bundle_is_served_on(serve: Serve, served: Path) -> None:
    """It was opened before: also what the first embedding and the first schema need."""
    server = serve(bundle=served)
    shutil.rmtree(served)
    answers_everything(server)
