"""examples/agent.py, in front of a model that follows a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.server.conftest import Serve
from tests.server.running import ROOT
from tests.server.scripted import call, script

AGENT = ROOT / "examples" / "agent.py"


def run(folder: Path, url: str, *words: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, AGENT, "Let greet.py say good day", "--folder", folder, "--url", url, *words]
    return subprocess.run(command, input=said, capture_output=True, text=True, timeout=120, check=False)


def test_it_reads_a_file_edits_it_and_runs_it(serve: Serve, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "greet.py").write_text('print("hello")\n')
    command = call("run_command", command=f"{sys.executable} greet.py > said.txt")
    answers = [
        call("read_file", path="greet.py"),
        call("edit_file", path="greet.py", old="hi", new="good day"),  # refused, and then done right
        call("edit_file", path="../greet.py", old="", new=""),
        call("edit_file", path="greet.py", old="hello", new="good day"),
        command,
        "It says good day.",
    ]
    server = serve("--ctx-size", 4096, code=script(answers))
    refused = run(work, server.url, said="n\n")
    assert refused.returncode == 0, refused.stderr
    assert not (work / "said.txt").exists()
    (work / "greet.py").write_text('print("hello")\n')
    done = run(work, server.url, "--yes")
    assert done.stdout.splitlines()[-1] == "It says good day."
    assert (work / "said.txt").read_text() == "good day\n"
    assert done.stdout.count("- edit_file") == 3
    read = server.metric("h2o_prompt_tokens_total") + server.metric("h2o_prompt_cached_tokens_total")
    assert server.metric("h2o_prompt_cached_tokens_total") > 0.7 * read


@pytest.mark.nightly
def test_it_gives_up(serve: Serve, tmp_path: Path) -> None:
    server = serve("--ctx-size", 8192, code=script([call("read_file", path="none")]))
    tried = run(tmp_path, server.url)
    assert tried.returncode == 1
    assert "not done after 30 requests" in tried.stderr


def test_it_says_what_is_wrong_with_the_server(serve: Serve, tmp_path: Path) -> None:
    nobody = run(tmp_path, "http://127.0.0.1:9")
    assert nobody.returncode == 1
    assert "start h2o-serve" in nobody.stderr
    locked = run(tmp_path, serve("--ctx-size", 256, key="secret").url)
    assert "answers 401" in locked.stderr
    assert "Traceback" not in nobody.stderr + locked.stderr


def test_it_is_short() -> None:
    assert len(AGENT.read_text(encoding="utf-8").splitlines()) <= 105
