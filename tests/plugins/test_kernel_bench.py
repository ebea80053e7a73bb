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
    from bench.kernels import caches, layer, run

    from h2o_plugins._cpu import Kernels

    monkeypatch.setattr(run, "DECODE_LENGTH", 512)
    kernels = Kernels(1, None, layer.HQ, layer.HKV, layer.D, float(layer.SCALE), False)
    for call, work, against in run.kernel_calls(kernels).values():
        call()
        assert work > 0
        assert against in ("matmul", "matmul_bfloat16", "read")
    kernels = Kernels(1, None, caches.HEADS * caches.GROUP, caches.HEADS, caches.D, 1.0, False)
    for dtype in ("float32", "float16", "int8"):
        for pages in (None, np.array([1, 0], np.int32)):
            caches.token(kernels, caches.stored(dtype, 2 * caches.PAGE), pages)()


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


def test_contenders_take_turns_and_the_first_round_does_not_count() -> None:
    turns: list[str] = []
    from bench.kernels import caches, policies, rounds

    assert caches.measure is policies.measure is rounds.measure
    found = rounds.measure({name: lambda name=name: turns.append(name) for name in "ab"}, 2)
    assert "".join(turns) == "ababab"
    assert all(0 <= times["least_ms"] <= times["median_ms"] for times in found.values())


def test_choosing_is_measured_as_the_rule_calls_it() -> None:
    """The chunks behind 12,288 to 14,336 tokens choose from all of them, the next one from candidates. Memory sets
    are rising rows before each tile's chunk, the last one among them."""
    from bench.kernels.choosing import OPERATORS, Batch

    from h2o_plugins._cpu import Kernels

    batch = Batch(Kernels(1, None, 2, 1, 64, 0.125, False), query_heads=2, kv_heads=1, d=64, tokens=16384)
    taken = batch.run()
    assert list(taken) == list(OPERATORS)
    assert min(taken.values()) > 0
    assert [[name for name, _ in calls] for calls in batch.calls] == [list(OPERATORS[1:]), list(OPERATORS)]
    for calls, tiles in zip(batch.calls, (24, 8), strict=True):
        (_, votes), (_, attention) = calls[-2:]
        chosen = attention["memory"]
        assert chosen.shape == (tiles, 1, 1920)
        assert (np.diff(chosen) > 0).all()
        assert (chosen.max(axis=(1, 2)) == votes["past"] - 1).all()
