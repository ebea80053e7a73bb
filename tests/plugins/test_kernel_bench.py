"""bench/kernels still compiles, and its calls are those that the kernels take."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
BENCH = REPO / "bench" / "kernels"


def test_what_measures_the_machine_compiles() -> None:
    folders = [f"-I{REPO / 'plugins' / 'kernels' / name}" for name in ("include", "cpu")]
    flags = ("-std=c++17", "-fsyntax-only", "-march=native")
    command = [os.environ.get("CXX", "c++"), *flags, *folders, str(BENCH / "machine.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_kernel_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.kernels import layer, run

    from h2o_plugins._cpu import Kernels

    monkeypatch.setattr(run, "DECODE_LENGTH", 512)
    kernels = Kernels(1, None, layer.HQ, layer.HKV, layer.D, float(layer.SCALE), False)
    for call, work, against in run.kernel_calls(kernels).values():
        call()
        assert work > 0
        assert against in ("matmul", "matmul_bfloat16", "read")
