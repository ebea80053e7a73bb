"""The calls of bench/kernels are those that the kernels take."""

from __future__ import annotations

import pytest


def test_every_kernel_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.kernels import run

    from h2o_plugins._cpu import Kernels

    monkeypatch.setattr(run, "DECODE_LENGTH", 512)
    kernels = Kernels(1, None, run.HQ, run.HKV, run.D, float(run.SCALE), False)
    for call, work, against in run.kernel_calls(kernels).values():
        call()
        assert work > 0
        assert against in ("matmul", "matmul_bfloat16", "read")
