"""The CUDA kernels on the CPU: built as plain C++ with the emulation beside this file, then run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_kernels_against_float64(tmp_path: Path) -> None:
    """One test for all operators: building is what takes the time."""
    configure = ["cmake", "-S", str(REPO / "plugins" / "kernels" / "cuda"), "-B", str(tmp_path)]
    program = str(tmp_path / "tests" / "h2o_cuda_emulated_test")
    for command in (
        [*configure, "-DH2O_CUDA_EMULATION=ON"],
        ["cmake", "--build", str(tmp_path), "-j2"],
        [program, "--small"],
        # With little shared memory wide heads run in tiles of half as many keys.
        [
            "env",
            "H2O_EMULATION_SHARED_KB=100",
            program,
            "--small",
            "--head-size",
            "128",
            "attention",
            "arguments",
        ],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
