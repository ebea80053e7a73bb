"""The CUDA kernels on the CPU: built as plain C++ with the emulation beside this file, then run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
GPU_CHECK = REPO / "bench" / "gpu_check"


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_kernels_against_float64(tmp_path: Path) -> None:
    """One test for all operators: building is what takes the time."""
    configure = ["cmake", "-S", str(REPO / "plugins" / "kernels" / "cuda"), "-B", str(tmp_path)]
    program = str(tmp_path / "tests" / "h2o_cuda_emulated_test")
    for command in (
        [*configure, "-DH2O_CUDA_EMULATION=ON"],
        ["cmake", "--build", str(tmp_path), "-j2"],
        [program, "--small"],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


def test_gpu_check_declares_the_c_interface_as_the_header_does() -> None:
    """ctypes checks nothing: an argument too many or too few would be a crash on the GPU."""
    header = (REPO / "plugins" / "kernels" / "include" / "h2o" / "cuda.h").read_text()
    header = re.sub(r"//[^\n]*", "", header)
    declared = {
        name: len(arguments.split(","))
        for name, arguments in re.findall(r"h2o_cuda_(\w+)\(([^)]*)\);", header)
    }
    sys.path.insert(0, str(GPU_CHECK))
    try:
        import library
    finally:
        sys.path.remove(str(GPU_CHECK))
    bound = {name: len(types) + 1 for name, types in library._OPERATORS.items()}  # the stream comes first
    bound |= {name: len(types) for name, types in library._WORKSPACES.items()}
    assert bound == declared
