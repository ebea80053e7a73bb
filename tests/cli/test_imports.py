"""What commands load before they have work: help comes at once, and where the large libraries are not installed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.cli.conftest import Run

LARGE = {
    *("torch", "transformers", "safetensors", "onnx", "onnxscript", "onnxruntime", "polygraphy"),
    *("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"),
    *("fastapi", "uvicorn", "prometheus_client", "llguidance"),
    *("gguf", "matplotlib", "llama_cpp", "onnxruntime_genai", "openvino", "openvino_genai"),
}


def _packages(import_times: str) -> set[str]:
    """Top-level packages in what `python -X importtime` writes."""
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in import_times.splitlines()}


@pytest.mark.parametrize("command", ["export", "run", "serve", "compare", "bench", "build", "eval"])
def test_help_loads_no_large_library(h2o: Run, command: str) -> None:
    done = h2o(command, "--help", env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = _packages(done.stderr.decode())
    assert "h2o_runtime" in loaded
    assert not loaded & LARGE


def test_a_benchmarks_process_loads_the_library_of_its_own_system_only() -> None:
    command = [sys.executable, "-X", "importtime", "-c", "import h2o_cli.bench.worker"]
    loaded = _packages(subprocess.run(command, capture_output=True, text=True, check=True).stderr)
    assert "h2o_cli" in loaded
    assert not loaded & LARGE
