"""What nvcc makes of the CUDA kernels, executed: the emulator interprets their PTX, with checks of its own.

The operators' tests run here, in a process that writes down which kernels ran.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests import emulation
from tests.plugins.cuda.toolkit import OPERATORS_TESTS, REPO

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc"),
    pytest.mark.skipif(emulation.missing() is not None, reason="needs cmake"),
]


ARGUMENTS = ("windows", "caps")  # groups of calls that differ from those of others in an argument


@dataclass(frozen=True)
class Ptx:
    folder: Path
    program: Path
    ran: list[str] = field(default_factory=list)

    def run(self, tmp_path: Path, *command: str, shared_kb: int = 164) -> None:
        """`shared_kb` is what a multiprocessor has, in KB: 100 on desktop GPUs, 164 on an Orin, 228 on an H100."""
        ran = tmp_path / "ran"
        variables = {
            emulation.PTX: str(self.folder),
            "H2O_EMULATION_PTX_RAN": str(ran),
            "H2O_EMULATION_SHARED_KB": str(shared_kb),
        }
        result = subprocess.run(
            command, env=os.environ | variables, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        self.ran.extend(ran.read_text().split())

    def run_tests(self, tmp_path: Path, *arguments: str, shared_kb: int = 164) -> None:
        pytest_command = (sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider")
        files = [f"tests/plugins/cuda/{each}" if each.endswith(".py") else each for each in arguments]
        self.run(tmp_path, *pytest_command, *files, shared_kb=shared_kb)


@pytest.fixture(scope="module")
def ptx() -> Ptx:
    return Ptx(emulation.build_ptx(), emulation.build_tests())


def test_kernels_against_float64(ptx: Ptx, tmp_path: Path) -> None:
    """Each call once: test_emulated.py runs calls of one head size twice, in other orders of threads.

    Windows and caps are arguments of kernels that other groups run with all head sizes: two sizes are enough.
    """
    cmake = (REPO / "tests" / "plugins" / "cuda" / "CMakeLists.txt").read_text()
    groups = re.findall(r"set\(H2O_CUDA_TEST_GROUPS ([\w ]+)\)", cmake)[0].split()
    others = [name for name in groups if name not in ARGUMENTS]
    assert len(others) == len(groups) - len(ARGUMENTS)
    ptx.run(tmp_path, str(ptx.program), "--small", "--once", *others)
    for size in ("64", "80"):
        ptx.run(tmp_path, str(ptx.program), "--small", "--once", "--head-size", size, *ARGUMENTS)


@pytest.mark.nightly
def test_windows_and_caps_of_every_head_size(ptx: Ptx, tmp_path: Path) -> None:
    ptx.run(tmp_path, str(ptx.program), "--small", "--once", *ARGUMENTS)


def test_operators_of_the_module(ptx: Ptx, tmp_path: Path) -> None:
    ptx.run_tests(tmp_path, *OPERATORS_TESTS)


def test_on_gpus_with_less_shared_memory(ptx: Ptx, tmp_path: Path) -> None:
    groups = ("--head-size", "128", "attention", "arguments")
    ptx.run(tmp_path, str(ptx.program), "--small", "--once", *groups, shared_kb=100)
    ptx.run_tests(tmp_path, "test_module_stored.py", "-k", "128-float16-int8", shared_kb=100)


def test_on_gpus_with_more_shared_memory(ptx: Ptx, tmp_path: Path) -> None:
    ptx.run_tests(tmp_path, "test_module_latent.py", "-k", "192x128 and in_float16", shared_kb=228)


def test_every_kernel_ran(ptx: Ptx) -> None:
    """After all of the above: a kernel that no test launches is not tested at all."""
    texts = "".join(path.read_text() for path in ptx.folder.glob("*.ptx"))
    kernels = {without_hashes(name) for name in re.findall(r"\.entry (\w+)", texts)}
    assert kernels - {without_hashes(name) for name in ptx.ran} == set()


def without_hashes(name: str) -> str:
    """The compiler's name without that of an unnamed namespace, which is nvcc's own."""
    return re.sub(r"\d+_GLOBAL__N_(1|_[0-9a-f]+_\d+_\w+?_cu_[0-9a-f]{8})", "", name)
