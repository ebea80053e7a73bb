"""h2o_plugins._cuda without a GPU: the real kernels and the real module, compiled against the emulation.

The kernels' test program is built in the same folder, so that kernels are compiled once for both.

Tests use the fixture `emulated_cuda`. A process of its own gets it with

    from tests.emulation import install
    install()

`python -m tests.emulation` builds all of it: make test does so while pip and mypy leave a core idle.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from h2o_runtime.sessions.session import Session

REPO = Path(__file__).resolve().parents[1]
BUILD = REPO / "build" / "emulated"  # kept, so that only the first of many test sessions waits for it
TESTS = Path("plugins", "kernels", "cuda", "tests")


def missing() -> str | None:
    """What keeps this machine from building the module."""
    for name, found in (("cmake", shutil.which("cmake")), ("ninja", _ninja())):
        if found is None:
            return f"{name} is not installed"
    return None


def _ninja() -> str | None:
    """The one of this environment, or the system's."""
    return shutil.which("ninja", path=Path(sys.executable).parent) or shutil.which("ninja")


def build_module() -> Path:
    """The module's file, up to date with the sources."""
    suffix: str = sysconfig.get_config_var("EXT_SUFFIX")
    return _build("_cuda") / "plugins" / "python" / f"_cuda{suffix}"


def build_onnxruntime_operators() -> Path:
    """The library of operators for ONNX Runtime's CUDA provider, which its CPU provider takes here."""
    return _build("h2o_onnxruntime_cuda") / "plugins" / "ort" / "libh2o_onnxruntime_cuda.so"


def build_tests() -> Path:
    """The kernels' test program."""
    return _build("h2o_cuda_emulated_test") / TESTS / "h2o_cuda_emulated_test"


def build_tests_with(source: Path) -> Path:
    """A test program with this source of a kernel in place of the one of the same name, beside the source."""
    program = str(build_tests().relative_to(BUILD))
    listed = _run(str(_ninja()), "-C", BUILD, "-t", "commands", program).splitlines()
    right = next(line for line in listed if line.endswith(f"/{source.name}"))
    compiled = right.split(" -o ")[1].split()[0]
    own = {compiled: str(source.with_suffix(".o")), program: str(source.with_suffix(""))}
    own[right.split()[-1]] = str(source)
    for command in (right, listed[-1]):
        for there, here in own.items():
            command = command.replace(there, here)
        _run("sh", "-c", f"cd {BUILD} && {command}")
    return source.with_suffix("")


def emulator_objects() -> list[Path]:
    """What takes the CUDA runtime's place, without kernels. Objects of earlier sources may lie beside them."""
    folder = _build("h2o_cuda_objects") / "plugins/kernels/cuda/CMakeFiles/h2o_cuda_objects.dir" / "__/__/__"
    sources = (REPO / "tests" / "plugins" / "cuda" / "emulator").rglob("*.cpp")
    return [folder / f"{source.relative_to(REPO)}.o" for source in sorted(sources)]


def build_everything() -> None:
    """Whatever tests of this machine ask for."""
    _build("h2o_cuda_objects")  # while pip's build compiles what the others have in common with it
    _build("_cuda", "h2o_cuda_emulated_test", "h2o_onnxruntime_cuda")


@functools.cache
def _build(*targets: str) -> Path:
    """Processes that ask at the same time wait for one.

    With the generator of pip's build, for which ccache finds what that one has compiled.
    """
    options = [
        "-GNinja",
        f"-DCMAKE_MAKE_PROGRAM={_ninja()}",
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DH2O_PYTHON=ON",
        "-DH2O_CUDA=ON",
        "-DH2O_CUDA_TESTS=ON",
        "-DH2O_CUDA_EMULATION=ON",
        *os.environ.get("CMAKE_ARGS", "").split(),
    ]
    configured = BUILD / "options.txt"  # written last; what CMake reads besides, Ninja looks at
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not configured.exists() or configured.read_text() != "\n".join(options):
            _run("cmake", "-S", REPO, "-B", BUILD, *options)
            configured.write_text("\n".join(options))
        _run("cmake", "--build", BUILD, "--target", *targets, "-j2")
    return BUILD


def load() -> ModuleType:
    """The module, built where need be; h2o_plugins does not know of it yet."""
    spec = importlib.util.spec_from_file_location("h2o_plugins._cuda", build_module())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install() -> ModuleType:
    """The module, as h2o_plugins._cuda for the rest of the process."""
    import h2o_plugins

    module = load()
    sys.modules["h2o_plugins._cuda"] = module
    h2o_plugins._cuda = module
    return module


def short_warm_up(patch: pytest.MonkeyPatch) -> None:
    """A few tokens warm a generator up: the emulation takes seconds for a logical batch."""
    from h2o_runtime.execution.recorded import RecordedForward
    from h2o_runtime.policies.prefill import Full

    real = RecordedForward.warm_up

    @functools.wraps(real)
    def warm_up(self: RecordedForward, policy: object, session: Session) -> None:
        real(self, Full(batch_size=5), session)

    patch.setattr(RecordedForward, "warm_up", warm_up)


def _run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


if __name__ == "__main__":
    if missing() is None:
        build_everything()
