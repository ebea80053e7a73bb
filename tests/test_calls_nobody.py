"""Commands open no connection and leave no file that nobody asked for: the system calls tell."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from h2o_runtime.bundles.manifest import Manifest
from tests import bundles, path_options, traces

ROOT = Path(__file__).parents[1]

_CALLS = "connect,sendto,sendmsg,sendmmsg,open,openat,openat2,creat,mkdir,mkdirat,rename,renameat,renameat2,symlink"
_WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|\b(?:creat|mkdir\w*|rename\w*|symlink)\(")
_NO_FILES = ("/dev/null", "/dev/tty", "/dev/shm/sem.", "/proc/self/")  # semaphores are those of one process
_INTERNET = re.compile(r"(connect|send\w+)\(.*(AF_INET6?|htons\(53\))")
_LISTENING = re.compile(r"listening on (http://\S+)")


class Traced:
    """One command under strace, with an empty home and a folder of its own for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.trace = folder / "trace"
        self.home.mkdir()
        (folder / "tmp").mkdir()
        unset = ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_OFFLINE")
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        own = {"HOME": str(self.home), "TMPDIR": str(folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
        fonts = {"MPLCONFIGDIR": str(folder / "tmp")}  # where matplotlib keeps a list of them
        self.environment = kept | own | fonts

    def start(self, module: str, *args: object) -> subprocess.Popen[str]:
        strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-s", "400", "-e", f"trace={_CALLS}"]
        command = [*strace, "-o", self.trace, sys.executable, "-m", module, *args]
        self.process = subprocess.Popen(
            [str(word) for word in command],
            cwd=ROOT,
            start_new_session=True,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def signal(self, number: int) -> None:
        """To the command; strace itself is deaf."""
        os.killpg(self.process.pid, number)

    def check(self, *outputs: Path, within: Path = ROOT) -> None:
        """Nothing was called, and nothing written but in `outputs` and the temporary folder.

        within: where paths begin that are relative
        """
        calls = self.trace.read_text(errors="replace").splitlines()
        assert len(calls) > 100, "strace saw the command"
        assert not [line for line in calls if _INTERNET.search(line)]
        allowed = (*_NO_FILES, *map(str, outputs), str(self.folder / "tmp"))
        written = [line for line in calls if _WRITES.search(line) and "= -1 " not in line]
        foreign = [line for line in written if not self._place(line, within).startswith(allowed)]
        assert not foreign
        assert not list(self.home.iterdir())

    def _place(self, line: str, within: Path) -> str:
        found = re.search(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"([^"]*)"', line)
        assert found, line
        return os.path.normpath(os.path.join(found[1] or within, found[2]))


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    if subprocess.run(["strace", "-f", "--seccomp-bpf", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody trace processes")
    traced = Traced(tmp_path)
    yield traced
    if traced.process.poll() is None:
        traced.signal(signal.SIGKILL)
        traced.process.communicate()


@pytest.mark.nightly
def test_a_run_calls_nobody(traced: Traced, tiny_bundle: Path) -> None:
    answered = traced.start("h2o_cli.run", tiny_bundle, "-p", "Once", "-n", 2)
    assert answered.communicate(timeout=500)[1] == ""
    traced.check()


def test_a_server_speaks_to_its_clients_alone(traced: Traced, tiny_bundle: Path, tmp_path: Path) -> None:
    cache, packed = tmp_path / "cache", tmp_path / "packed"
    serving = traced.start(
        *("h2o_cli.serve", tiny_bundle, "--port", 0, "--cache-pool", 16, "--cache-dir", cache, "-v"),
        *("--packed-weights", packed, "--compute", "dense_form=native"),
    )
    assert serving.stderr is not None
    url = next(found[1] for line in serving.stderr if (found := _LISTENING.search(line)))
    next(line for line in serving.stderr if "ready: " in line)
    json = {"Content-Type": "application/json"}
    body = b'{"prompt": "Once", "max_tokens": 2}'
    urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body, json), timeout=300).read()
    time.sleep(2)  # a library's own thread looks its host up soon after its first session
    traced.signal(signal.SIGTERM)
    assert serving.wait(300) == 143
    traced.check(cache, packed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_option_that_takes_a_path_asks_the_hub(
    traced: Traced, shared_folder: Path, tmp_path: Path
) -> None:
    """Each gets owner/name, which a hub could have: only arguments that name a checkpoint may look there.

    One of the cases exports, and validates what it wrote.
    """
    places = tmp_path / "places"
    places.mkdir()
    tried = traced.start("tests.path_options", *bundles.named(shared_folder, "llama-g2-d64-llama3"), places)
    assert tried.communicate(timeout=800)[1] == ""
    case, asked = "", set()
    for line in traced.trace.read_text(errors="replace").splitlines():
        if made := re.search(rf'mkdir\("{re.escape(str(places))}/([^/"]+)", .*= 0', line):
            case = made[1]
        elif _INTERNET.search(line):
            asked.add(case)
    assert not asked
    for each in map(str, path_options.cases()):
        told = (places / each / path_options.OUTPUT).read_text()
        code = (places / each / path_options.CODE).read_text()
        assert path_options.HUB_NAME in told or code in ("0", "143"), f"{each} exits with {code}: {told}"
    assert Manifest.read(places / "export output" / path_options.HUB_NAME).validation is not None
    traced.check(places, traces.FOLDER, within=places)


def test_importing_the_package_leaves_what_the_user_has_set() -> None:
    code = (
        "import os, h2o_runtime\n"
        "print(os.environ['ORT_DISABLE_TELEMETRY'], os.environ['HF_HUB_DISABLE_TELEMETRY'])"
    )
    cases: tuple[tuple[dict[str, str], str], ...] = (({}, "1 1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0 1"))
    for given, told in cases:
        kept = {name: value for name, value in os.environ.items() if "TELEMETRY" not in name}
        done = subprocess.run(
            [sys.executable, "-c", code], env=kept | given, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == told
