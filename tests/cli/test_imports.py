"""What commands load before they have work: help comes at once, and where the large libraries are not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Run

SERVING = {"fastapi", "httptools", "llguidance", "prometheus_client", "starlette", "uvicorn"}
LARGE = {
    *SERVING,
    *("torch", "transformers", "safetensors", "onnx", "onnxscript", "onnxruntime", "polygraphy"),
    *("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"),
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


def test_h2o_run_works_without_the_server_and_its_packages(tiny_bundle: Path) -> None:
    script = (
        "import runpy, sys\n"
        f"sys.modules.update(dict.fromkeys({sorted(SERVING | {'h2o_server'})}))\n"  # None: cannot be imported
        "runpy.run_module('h2o_cli.run', run_name='__main__', alter_sys=True)\n"
    )
    flags = ("--chat", "-p", "What is a module?", "-n", "4", "--json", "--ignore-eos")
    command = [sys.executable, "-c", script, str(tiny_bundle), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["tokens"]) == 4
