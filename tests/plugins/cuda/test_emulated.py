"""The CUDA kernels on the CPU: built as plain C++ with the emulation beside this file, then run."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests import emulation


@pytest.fixture(scope="module")
def program() -> str:
    if missing := emulation.missing():
        pytest.skip(missing)
    return str(emulation.build_tests())


def run(*command: str, **variables: str) -> None:
    result = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_kernels_against_float64(program: str) -> None:
    """What is not below. Heads of other sizes run nightly."""
    run(program, "--small", "--once", "--head-size", "64", "select", "bounds", "far")


def test_a_second_run_has_the_same_bytes(program: str) -> None:
    """In other orders of threads. Windows and caps are arguments of the kernels of attention."""
    groups = ("windows", "caps", "candidate", "rows", "pages", "products")
    run(program, "--small", "--head-size", "80", *groups)


@pytest.mark.nightly
def test_a_second_run_of_every_head_size(program: str) -> None:
    run(program, "--small")


@pytest.mark.nightly
def test_more_selections(program: str) -> None:
    run(program, "--once", "select")


@pytest.mark.nightly
def test_other_numbers_than_usual(program: str) -> None:
    """Large scores in float32 whose errors happen to be larger than those of another order of adding up."""
    run(program, "--small", "--once", "--seed", "1", "pages")


def test_wide_heads_with_little_shared_memory_run_in_tiles_of_half_as_many_keys(program: str) -> None:
    groups = ("attention", "arguments")
    run(program, "--small", "--once", "--head-size", "128", *groups, H2O_EMULATION_SHARED_KB="100")
