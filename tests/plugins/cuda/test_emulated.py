"""The CUDA kernels on the CPU: built as plain C++ with the emulation beside this file, then run."""

from __future__ import annotations

import ctypes
import importlib
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from h2o_runtime import PrefillConfig

REPO = Path(__file__).resolve().parents[3]
GPU_CHECK = REPO / "bench" / "gpu_check"


def gpu_check_module(name: str) -> Any:
    """A module of bench/gpu_check, which is a folder of scripts and no package."""
    sys.path.insert(0, str(GPU_CHECK))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(GPU_CHECK))


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


def test_gpu_check_reads_the_c_interface_from_the_headers() -> None:
    """ctypes checks nothing: an argument too many or too few, or a field too short, would be a crash on the GPU."""
    declared = gpu_check_module("library").declarations()
    header = (REPO / "plugins" / "kernels" / "include" / "h2o" / "cuda.h").read_text()
    assert len(declared.functions) == len(re.findall(r"\bh2o_cuda_\w+\(", re.sub(r"//[^\n]*", "", header)))
    structures = declared.structures
    assert {name: ctypes.sizeof(structure) for name, structure in structures.items()} == {
        "h2o_kv": 56,
        "h2o_cuda_shape": 24,
        "h2o_cuda_state": 24,
    }
    result, arguments = declared.functions["cached_attention"]
    shape, kv = (ctypes.POINTER(structures[name]) for name in ("h2o_cuda_shape", "h2o_kv"))
    pointer = ctypes.c_void_p
    assert result is ctypes.c_int32
    assert arguments == [
        pointer, shape, ctypes.c_int32, pointer, kv, pointer, pointer, pointer, ctypes.c_size_t,
    ]  # fmt: skip


def test_gpu_check_reports_what_missed_its_goal(tmp_path: Path) -> None:
    report = gpu_check_module("report")
    row = {
        "head_size": 64,
        "plain_of_flash": 0.8,
        "scored_of_flash": 0.4,
        "gather_of_copy": 0.6,
        "fused_of_limit": 0.7,
    }
    layer = [{"head_size": 64, "n": n, "speedup": 6.0} for n in (4096, 16384, 32768)]
    timings = {"setting": {}, "ceilings": {"copy": 1.0}, "phase1": [row], "phase2": [row], "layer": layer}
    timings |= {"decode": [row], "repeatable": True}
    missed = report.missed_goals(timings)
    assert [line.split(":")[0] for line in missed] == [
        "scored_of_flash at head size 64",
        "N = 32768, head size 64",
    ]
    machine, checks = {"gpu": "none"}, [{"check": "tests", "passed": True}]
    report.write({"machine": machine, "checks": checks, "timings": timings}, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert all(f"missed: {line}" in text for line in missed)
    report.write({"machine": machine, "checks": checks, "no_timings": "torch is missing"}, tmp_path)
    assert "torch is missing" in (tmp_path / "report.md").read_text()


def test_gpu_check_runs_a_bundle_end_to_end(
    tiny_bundle: Path,
    emulated_cuda: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Greedy tokens of the example model on ONNX Runtime with CUDA attention equal those on the CPU."""
    monkeypatch.setenv("H2O_EMULATION_EAGER", "1")
    script = gpu_check_module("end_to_end")
    small = PrefillConfig(chunk_size=128, batch_size=256, local=32, heavy=32, score_window=16)
    assert set(script.policies(small)) == {"full", "colsum", "window"}
    monkeypatch.setattr(
        script, "policies", lambda bundle: {"colsum": small, "full": replace(small, policy="full")}
    )
    rows = script.compare(tiny_bundle, "onnxruntime", n=300, steps=12)
    assert [row["policy"] for row in rows] == ["colsum", "full"]
    for row in rows:
        assert row["tokens_equal"]
        assert row["runs_identical"]
        assert row["error"] < 1e-5
    monkeypatch.setattr(sys, "argv", ["end_to_end.py", str(tiny_bundle), "--backend", "tensorrt"])
    assert script.main() == 2
    assert "TensorRT is not installed" in capsys.readouterr().out.splitlines()[-1]
