"""What only AArch64 compiles of the CPU kernels: a cross compiler takes it without a warning."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("aarch64-linux-gnu-g++")
pytestmark = [
    pytest.mark.skipif(
        COMPILER is None or shutil.which("cmake") is None,
        reason="aarch64-linux-gnu-g++ is not installed: it is in the package g++-aarch64-linux-gnu",
    ),
    pytest.mark.slow,
]
ARM = ROOT / "plugins" / "kernels" / "cpu" / "arm"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """How CMake compiles each source of the kernels for AArch64."""
    build = tmp_path_factory.mktemp("cross")
    toolchain = ROOT / "cmake" / "toolchains" / "aarch64-linux-gnu.cmake"
    flags = ["-DH2O_WERROR=ON", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DCMAKE_TOOLCHAIN_FILE={toolchain}"]
    cmake("-S", ROOT, "-B", build, *flags)
    cmake("--build", build, "--target", "h2o_operators")  # writes a header that the others include
    listed = json.loads((build / "compile_commands.json").read_text())
    return {Path(entry["file"]): entry["command"] for entry in listed}


def cmake(*arguments: str | Path) -> None:
    done = subprocess.run(["cmake", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_sources_of_aarch64_compile(commands: dict[Path, str], tmp_path: Path) -> None:
    sources = [source for source in commands if source.parent == ARM or "__aarch64__" in source.read_text()]
    assert len(sources) >= 6
    running = [
        subprocess.Popen(
            [*shlex.split(commands[source]), "-fsyntax-only"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        for source in sources
    ]
    said = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * len(sources), "".join(said)
