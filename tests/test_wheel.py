"""The wheel as a user gets it: built, installed into an environment of its own, used from another directory."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from tools import wheels

ROOT = Path(__file__).parents[1]
PACKAGES = {"h2o_cli", "h2o_export", "h2o_plugins", "h2o_runtime", "h2o_server"}
pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel."""

    folder: Path
    wheel: Path
    gained: frozenset[str]  # what the wheel put at the top level of site-packages

    def run(self, program: str, *args: object) -> subprocess.CompletedProcess[str]:
        """A program of the environment, elsewhere, with no compiler and nothing of the caller's Python."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        env["PATH"] = str(self.folder / "bin")
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        command = [str(self.folder / "bin" / program), *map(str, args)]
        return subprocess.run(command, cwd=elsewhere, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(shared_folder: Path) -> Installed:
    """Built and installed by the first worker that asks; the others wait for it."""
    folder, listing = shared_folder / "wheel-environment", shared_folder / "wheel-gained.json"
    with (shared_folder / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not listing.exists():
            listing.write_text(json.dumps(_install(_build(shared_folder), folder)))
    (wheel,) = (shared_folder / "wheel").iterdir()
    return Installed(folder, wheel, frozenset(json.loads(listing.read_text())))


def _build(folder: Path) -> Path:
    # A build folder of its own: that of the installation belongs to whoever works there. But beside it: for ccache,
    # which knows sources by their paths from the build folder, they are new elsewhere, and it compiles all again.
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=ROOT / "build") as build:
        flags = ("--no-build-isolation", "--no-deps", "--no-index", "--config-settings", f"build-dir={build}")
        _pip("wheel", *flags, "--wheel-dir", folder / "wheel", ROOT)
    (wheel,) = (folder / "wheel").iterdir()
    return wheel


def _install(wheel: Path, folder: Path) -> list[str]:
    """What site-packages gained. Dependencies come from the environment that runs the tests."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    # A folder named in a .pth file is searched, and its own .pth files are not read: the dependencies are
    # there, and the packages of an editable installation are not.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    before = set(os.listdir(site))
    _pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    return sorted(set(os.listdir(site)) - before)


def _pip(*args: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_site_packages_gains_the_five_packages_only(installed: Installed) -> None:
    records = {
        name for name in installed.gained if name.startswith("h2o_edge-") and name.endswith(".dist-info")
    }
    assert len(records) == 1
    assert installed.gained == PACKAGES | records
    (site,) = installed.folder.glob("lib/python*/site-packages")
    folders = {"export", "runtime", "server", "cli", "tests", "plugins", "bench", "examples"}
    assert not folders & set(os.listdir(site))


earlier_glibc = pytest.mark.skipif(
    platform.libc_ver() > ("glibc", "2.36"),
    reason="compilers of later systems want later libraries: docs/wheels.md",
)


@earlier_glibc
def test_the_wheel_runs_on_systems_of_2018(installed: Installed, tmp_path: Path) -> None:
    repaired = wheels.repair(installed.wheel, tmp_path)
    with zipfile.ZipFile(installed.wheel) as before, zipfile.ZipFile(repaired) as after:
        libraries = [name for name in before.namelist() if ".so" in name]
        assert len(libraries) == 2
        # Nothing of the system's was copied in, and nothing changed.
        assert [name for name in after.namelist() if ".so" in name] == libraries
        assert all(before.read(name) == after.read(name) for name in libraries)


def test_a_wheel_that_needs_a_later_system_is_refused(installed: Installed, tmp_path: Path) -> None:
    source, library = tmp_path / "late.c", tmp_path / "late.so"
    source.write_text(
        "void arc4random_buf(void *, unsigned long);\nvoid f(char *c) { arc4random_buf(c, 1); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    wheel = tmp_path / installed.wheel.name
    with zipfile.ZipFile(installed.wheel) as before, zipfile.ZipFile(wheel, "w") as after:
        for name in before.namelist():
            after.writestr(
                name, library.read_bytes() if name.endswith("onnxruntime.so") else before.read(name)
            )
    with pytest.raises(wheels.BuildError, match=r"glibc 2\.28"):
        wheels.repair(wheel, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_page_of_the_server_is_in_the_wheel(installed: Installed) -> None:
    (there,) = installed.folder.glob("lib/python*/site-packages/h2o_server/static")
    here = ROOT / "server" / "h2o_server" / "static"
    assert {path.name for path in here.iterdir()} == {path.name for path in there.iterdir()}


def test_packages_and_metadata_are_those_of_the_wheel(installed: Installed) -> None:
    script = (
        "import importlib.metadata, importlib.util, json\n"
        f"names = {sorted(PACKAGES)}\n"
        "print(json.dumps([importlib.util.find_spec(name).origin for name in names]))\n"
        "print(importlib.metadata.version('h2o-edge'))\n"
        "import h2o_plugins\n"
        "print(h2o_plugins.cpu_kernels().__file__)\n"
    )
    done = installed.run("python", "-c", script)
    assert done.returncode == 0, done.stderr
    origins, version, kernels = done.stdout.splitlines()
    for path in (*json.loads(origins), kernels):
        assert Path(path).is_relative_to(installed.folder), path
    assert any(f"-{version}." in name for name in installed.gained)


def test_every_command_is_installed(installed: Installed) -> None:
    for command in ("export", "run", "serve", "compare", "bench", "build", "eval"):
        assert (installed.folder / "bin" / f"h2o-{command}").is_file()


def test_a_prompt_runs_on_native_kernels(installed: Installed, tiny_bundle: Path) -> None:
    prompt = ("-p", "The module defines a class", "-n", 8, "--ignore-eos")
    flags = (*prompt, "--compute", "attention=native", "--json")
    done = installed.run("h2o-run", tiny_bundle, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["attention"] == "native"
    assert len(document["tokens"]) == 8
    assert document["answer"]


def test_running_a_bundle_needs_nothing_of_the_exporter(installed: Installed, tiny_bundle: Path) -> None:
    script = (
        "import sys\n"
        "import h2o_runtime\n"
        "with h2o_runtime.Generator.load(sys.argv[1], context=64, attention='native') as generator:\n"
        "    generator.prefill([5, 6, 7])\n"
        "import h2o_cli.run.command\n"
        "print(*sorted(sys.modules))\n"
    )
    done = installed.run("python", "-c", script, tiny_bundle)
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "h2o_runtime" in loaded
    assert not loaded & {"torch", "transformers", "onnxscript", "safetensors", "h2o_export"}
