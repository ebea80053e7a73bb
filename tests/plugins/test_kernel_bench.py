"""bench/kernels still compiles, and its calls are those that the kernels take."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
BENCH = REPO / "bench" / "kernels"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of scripts, which import each other by their names alone."""
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_what_measures_the_machine_compiles() -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folders = [f"-I{REPO / 'plugins' / 'kernels' / name}" for name in ("include", "cpu")]
    command = [compiler, "-std=c++17", "-fsyntax-only", "-march=native", *folders, str(BENCH / "machine.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("scripts")
def test_every_kernel_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from h2o_plugins._cpu import Kernels

    layer, run = importlib.import_module("layer"), importlib.import_module("run")
    monkeypatch.setattr(run, "DECODE_LENGTH", 512)
    kernels = Kernels(1, None, layer.HQ, layer.HKV, layer.D, float(layer.SCALE), False)
    for call, work, against in run.kernel_calls(kernels).values():
        call()
        assert work > 0
        assert against in ("matmul", "read")
