"""Codex and Claude Code as they are, in front of a model that follows a script. `make clients` installs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bundles import export
from tests.conftest import EXAMPLE
from tests.server.running import ROOT, Server, wait_for
from tests.server.scripted import call, script

INSTALLED = ROOT / "build" / "clients" / "node_modules" / ".bin"
ASK = "Let greet.py say good day."
RUN = "python3 greet.py > said.txt && cat said.txt"
DONE, AGAIN, STILL = "It says good day now.", "It does.", "It still does."
TURN = re.compile(r"prompt (\d+) \(\+(\d+) cached\)")  # in the server's log
CODEX = """model = "local"
model_provider = "h2o"
model_context_window = 65536

[model_providers.h2o]
name = "h2o-serve"
base_url = "{url}/v1"
wire_api = "responses"
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def long_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example model with a context that holds what these clients say before the first question."""
    folder = tmp_path_factory.mktemp("long")
    checkpoint = shutil.copytree(EXAMPLE, folder / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 65536}))
    return export(checkpoint, folder / "bundle")


class Desk:
    """A user's home and work folder, one installed client, and the server that it asks."""

    def __init__(self, program: str, bundle: Path, folder: Path, answers: list[str]) -> None:
        self.folder, self.work = folder, folder / "work"
        for name in ("work", "site", ".codex"):
            (folder / name).mkdir()
        self.program = program
        self.server = Server(bundle, "--ctx-size", 65536, "--threads", 2, code=script(answers))
        self.server.wait_until_ready()
        (folder / ".codex" / "config.toml").write_text(CODEX.format(url=self.server.url))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The client, which reaches nothing but this machine."""
        nowhere = "http://127.0.0.1:9"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "HTTP_PROXY": nowhere,
            "HTTPS_PROXY": nowhere,
            "NO_PROXY": "127.0.0.1",
            "ANTHROPIC_BASE_URL": self.server.url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "local",
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8192",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",  # Claude Code refuses root elsewhere
        }
        return subprocess.Popen(
            [self.program, *words],
            env=environment,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str) -> str:
        client = self.start(*words)
        told, _ = client.communicate(timeout=240)
        assert client.returncode == 0, told[-3000:] + self.server.log[-3000:]
        return told


def found(client: str) -> str:
    program = shutil.which(client, path=f"{INSTALLED}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip(f"{client} is not installed: make clients")
    return program


@pytest.fixture
def codex(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    edit = "sed -i 's/hello/good day/' greet.py"
    commands = [call("exec_command", cmd=one) for one in ("cat greet.py", edit, RUN)]
    run = commands[-1]
    yield from desk("codex", tmp_path, [*commands, DONE, run, AGAIN, run, STILL], request)


@pytest.fixture
def claude(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    file = str(tmp_path / "work" / "greet.py")
    run = call("Bash", command=RUN, description="Run it")
    edit = call("Edit", file_path=file, old_string="hello", new_string="good day")
    task = [call("Read", file_path=file), edit, run, DONE]
    yield from desk("claude", tmp_path, [*task, run, AGAIN, run, STILL], request)


def desk(client: str, folder: Path, answers: list[str], request: pytest.FixtureRequest) -> Iterator[Desk]:
    program = found(client)  # before a bundle is made for it
    made = Desk(program, request.getfixturevalue("long_bundle"), folder, answers)
    try:
        yield made
        assert not re.findall(r"POST \S+ [45]\d\d", made.server.log), made.server.log
        assert "Traceback" not in made.server.log
    finally:
        made.server.stop()
        request.node.add_report_section("teardown", "h2o-serve", made.server.log)


def check(desk: Desk, ask: list[str], resume: list[str]) -> None:
    """An interruption while the prompt is read, the whole task, and two turns that go on with it."""
    (desk.work / "greet.py").write_text('print("hello")\n')
    client = desk.start(*ask)
    wait_for(lambda: desk.server.metric("h2o_busy"))
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=60)
    desk.server.wait_until_idle()

    assert DONE in desk.run(*ask)
    assert (desk.work / "greet.py").read_text() == 'print("good day")\n'
    assert (desk.work / "said.txt").read_text() == "good day\n"

    for told in (AGAIN, STILL):
        (desk.work / "said.txt").unlink()
        before = len(desk.server.log)
        assert told in desk.run(*resume)
        assert (desk.work / "said.txt").read_text() == "good day\n"
        requests = [(int(read), int(cached)) for read, cached in TURN.findall(desk.server.log[before:])]
        assert len(requests) >= 2  # the call, and what follows it
        assert all(cached > 9 * read for read, cached in requests), requests


def test_codex_reads_a_file_edits_it_and_runs_it(codex: Desk) -> None:
    free = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    check(codex, ["exec", *free, ASK], ["exec", "resume", *free, "--last", "Run it again."])


def test_claude_code_reads_a_file_edits_it_and_runs_it(claude: Desk) -> None:
    free = ["--permission-mode", "bypassPermissions"]
    check(claude, ["-p", ASK, *free], ["-p", "Run it again.", "--continue", *free])
