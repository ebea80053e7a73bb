"""What commands load before they have work: help comes at once, and where the large libraries are not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

SERVING = {"fastapi", "httptools", "llguidance", "prometheus_client", "starlette", "uvicorn"}
LARGE = {
    *SERVING,
    *("torch", "transformers", "safetensors", "onnx", "onnxscript", "onnxruntime", "polygraphy"),
    *("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"),
    *("gguf", "matplotlib", "llama_cpp", "onnxruntime_genai", "openvino", "openvino_genai"),
}


LOADED = """
import sys
from contextlib import redirect_stdout, suppress
from importlib.metadata import entry_points
from io import StringIO

import h2o_cli.bench.worker  # a process of it loads the library of its own system only

told = {}
with redirect_stdout(StringIO()):
    for command in entry_points(group="console_scripts"):
        if command.name.startswith("h2o-"):
            sys.argv = [command.name, "--help"]
            with suppress(SystemExit):
                command.load()()
            told[command.name] = {name.partition(".")[0] for name in sys.modules}
print(told)
"""


def test_help_loads_no_large_library() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    told: dict[str, set[str]] = literal_eval(done.stdout)
    assert len(told) == 7
    for command, loaded in told.items():
        assert "h2o_runtime" in loaded, command
        assert not loaded & LARGE, command


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
