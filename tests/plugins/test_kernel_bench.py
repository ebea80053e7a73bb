"""bench/kernels still compiles, and its calls are those that the kernels take."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
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


@pytest.mark.parametrize("tokens", [3072, 16384])
def test_phase_2_is_measured_by_the_default_rule(tokens: int) -> None:
    """Behind few tokens all of them are voted for."""
    from bench.kernels import layer

    from h2o_plugins._cpu import Kernels
    from h2o_runtime import Query

    kernels = Kernels(1, None, layer.HQ, layer.HKV, layer.D, float(layer.SCALE), False)
    phase2, rule = layer.QueryPhase2(kernels, *layer.inputs(tokens)), Query()
    phase2()
    past = tokens - rule.chunk_size
    voted, voters = rule.narrowed_to(past), rule.chunk_size / rule.stride_at(past)
    assert phase2.candidates.shape == (rule.tiles_of_chunk, layer.HKV, voted)
    assert phase2.sets.shape == (rule.tiles_of_chunk, layer.HKV, rule.memory_at(past))
    assert (np.diff(phase2.sets) > 0).all()
    assert (phase2.sets[:, :, -1] == past - 1).all()
    compared = 2 * (past // layer.BLOCK) + voted if voted else past
    pairs = voters * compared + 2 * rule.chunk_size * rule.memory_at(past)
    assert phase2.flops() == 2 * layer.D * layer.HQ * pairs
