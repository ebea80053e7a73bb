"""The CUDA kernels on the CPU: built as plain C++ with the emulation beside this file, then run."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from tests import emulation


@pytest.fixture(scope="module")
def program() -> str:
    if missing := emulation.missing():
        pytest.skip(missing)
    return str(emulation.build_tests())


def run(*command: str, **variables: str) -> None:
    environment = os.environ | {emulation.PTX: ""} | variables
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_kernels_against_float64(program: str) -> None:
    """With nvcc, test_ptx.py runs all head sizes on nvcc's code; fences between blocks are checked only here."""
    one_size = () if shutil.which("nvcc") is None else ("--head-size", "80")
    run(program, "--small", *one_size)


def test_other_numbers_than_usual(program: str) -> None:
    """Large scores in float32 whose errors happen to be larger than those of another order of adding up.

    Once: that a second run has the same bytes does not depend on these numbers.
    """
    run(program, "--small", "--once", "--seed", "1", "pages")


def test_wide_heads_with_little_shared_memory_run_in_tiles_of_half_as_many_keys(program: str) -> None:
    run(program, "--small", "--head-size", "128", "attention", "arguments", H2O_EMULATION_SHARED_KB="100")
