"""--cache-dir: a folder that cannot take conversations is an error at start, and what it takes is private."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.forked import commands
from tests.server.conftest import Serve
from tests.server.running import PATIENCE


def refused(bundle: Path, folder: Path) -> str:
    done = commands("serve").run(
        "serve", [str(bundle), "--port", "0", "--cache-dir", str(folder)], None, PATIENCE
    )
    assert done.returncode in (1, 2)
    assert b"Traceback" not in done.stderr
    return done.stderr.decode()


@pytest.mark.parametrize("place", ["", "onnx/conversations"])
def test_a_place_inside_the_bundle_is_refused(tiny_bundle: Path, place: str) -> None:
    before = sorted(tiny_bundle.rglob("*"))
    told = refused(tiny_bundle, tiny_bundle / place)
    assert f"error: {tiny_bundle / place}: is {'inside the' if place else 'a'} bundle" in told
    assert sorted(tiny_bundle.rglob("*")) == before


@pytest.mark.parametrize("place", ["/proc", "/dev/null/conversations"])
def test_a_place_that_takes_no_file_is_refused(tiny_bundle: Path, place: str) -> None:
    told = refused(tiny_bundle, Path(place))
    assert f"{place}: files cannot be written there: " in told
    assert "ready" not in told


def test_a_place_that_takes_no_more_bytes_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    """A limit of the process stands for a full disk."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))"
    words: list[str | bytes] = [str(tiny_bundle), "--port", "0", "--cache-dir", str(tmp_path)]
    done = commands("serve").run("serve", words, None, PATIENCE, limit)
    assert done.returncode == 1
    assert f"{tmp_path}: files cannot be written there: File too large" in done.stderr.decode()
    assert not list(tmp_path.iterdir())


def test_conversations_are_kept_for_their_owner_alone(serve: Serve, tmp_path: Path) -> None:
    """Also in a folder that was there before, and others may enter; a closed terminal may say so twice."""
    tmp_path.chmod(0o755)
    server = serve("--cache-dir", tmp_path, "--prefill", "full")
    server.complete("The module defines a class. " * 30)
    for _ in range(2):
        server.process.send_signal(signal.SIGHUP)
    assert server.process.wait(PATIENCE) == 128 + signal.SIGHUP
    assert [file.stat().st_mode & 0o777 for file in tmp_path.iterdir()] == [0o600]
