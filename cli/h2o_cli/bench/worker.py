"""A contestant's own process: it reads commands as JSON lines, and answers each with one line.

    {"do": "start", "system": …, "settings": …}   → {"version"}
    {"do": "open", "context": n}                  → {"libraries": bytes in use before anything was loaded}
    {"do": "prefill", "tokens": n}                → {"seconds", "cpu", "token", "phases"}
    {"do": "decode", "tokens": n}                 → {"seconds": [one a token], "cpu": a token's}
    {"do": "rates"}                               → the machine's measured rates
    {"do": "memory"}                              → {"peak": bytes}

An answer {"absent": reason} or {"failed": reason} ends the contestant's part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from h2o_cli.bench.systems import attention
from h2o_cli.bench.systems.h2o import H2OSystem
from h2o_cli.bench.systems.llama_cpp import LlamaCppSystem
from h2o_cli.bench.systems.onnxruntime_genai import OnnxRuntimeGenAISystem
from h2o_cli.bench.systems.openvino_genai import OpenVinoGenAISystem
from h2o_cli.bench.systems.system import OWN_SYSTEM, Absent, Ids, Settings, System
from h2o_cli.bench.systems.transformers import TransformersSystem
from h2o_runtime.errors import H2OError
from h2o_runtime.process import peak_bytes, resident_bytes

Answer = dict[str, Any]
SMALLEST_VOCABULARY = 256
# A peer's library is imported when its system is constructed, in that contestant's process only.
SYSTEMS: dict[str, Callable[[Settings], System]] = {
    OWN_SYSTEM: H2OSystem,
    "attention": attention.PolicyAttention,
    "torch SDPA": attention.TorchAttention,
    "onnxruntime GQA": attention.OnnxRuntimeAttention,
    "llama.cpp": LlamaCppSystem,
    "transformers": TransformersSystem,
    "onnxruntime-genai": OnnxRuntimeGenAISystem,
    "openvino-genai": OpenVinoGenAISystem,
}
# Thread-count variables of the libraries with their own threads.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "GGML_N_THREADS",
)


class Failed(Exception):  # noqa: N818 - an outcome that the results report
    """A contestant gave up or died while running; the text says how."""


class WorkerProcess:
    """A contestant's process: it starts with the system's construction and ends with `close`.

    Raises Absent if the contestant cannot take part, Failed if it breaks.
    """

    def __init__(self, system: str, settings: dict[str, Any]) -> None:
        threads = str(settings["threads"])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(
            [sys.executable, "-m", "h2o_cli.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | dict.fromkeys(_THREAD_VARIABLES, threads) | {"HF_HUB_OFFLINE": "1"},
            preexec_fn=lambda: _pin(settings["threads"]),
            start_new_session=True,  # Ctrl-C is for the command, which then ends its workers
        )
        try:
            self.version = str(self.ask("start", system=system, settings=settings)["version"])
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One command and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "absent" in answer:
            raise Absent(answer["absent"])
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer

    def close(self) -> None:
        """Kill the process at once: it has nothing to save, and may use gigabytes."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"its process was {how}" + (f": {lines[-1][:300]}" if lines else "")


def _pin(threads: int) -> None:
    """The first `threads` cores that the command may use, so that all contestants have the same."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


class Worker:
    """Executes commands one by one on one system."""

    def __init__(self) -> None:
        self._system: System | None = None
        self._draw = np.random.default_rng(1)
        self._vocabulary = SMALLEST_VOCABULARY
        self._prompt: list[int] = []
        self._threads, self._device = 1, "cpu"

    def start(self, system: str, settings: dict[str, Any]) -> Answer:
        self._vocabulary = settings.get("vocabulary", SMALLEST_VOCABULARY)
        self._prompt = settings.get("prompt", [])
        self._threads, self._device = settings["threads"], settings["device"]
        if system == "machine":
            return {"version": np.__version__}
        self._system = SYSTEMS[system](settings)
        return {"version": self._system.version}

    def open(self, context: int) -> Answer:
        libraries = resident_bytes()
        self._active.open(context)
        return {"libraries": libraries}

    def prefill(self, tokens: int) -> Answer:
        ids = self._ids(tokens)
        begin, used = time.perf_counter(), time.process_time()
        token = self._active.prefill(ids)
        seconds, used = time.perf_counter() - begin, time.process_time() - used
        return {"seconds": seconds, "cpu": used, "token": token, "phases": self._active.phases()}

    def decode(self, tokens: int) -> Answer:
        seconds: list[float] = []
        used = time.process_time()
        for token in self._draw.integers(2, self._vocabulary, tokens).tolist():
            begin = time.perf_counter()
            self._active.decode(token)
            seconds.append(time.perf_counter() - begin)
        return {"seconds": seconds, "cpu": (time.process_time() - used) / tokens}

    def rates(self, dtype: str) -> Answer:
        """dtype: of a GPU's products; a CPU's are float32."""
        from h2o_cli.bench.machine import measure_gpu_rates, measure_rates

        return measure_rates(self._threads) if self._device == "cpu" else measure_gpu_rates(dtype)

    def memory(self) -> Answer:
        return {"peak": peak_bytes()}

    def _ids(self, tokens: int) -> Ids:
        """The same prompt for every contestant."""
        if self._prompt:
            return np.array(self._prompt[:tokens], np.int64)
        return np.random.default_rng(tokens).integers(2, self._vocabulary, tokens)

    @property
    def _active(self) -> System:
        assert self._system is not None, "start comes first"
        return self._system


def serve(commands: TextIO, answers: TextIO) -> None:
    """Answer commands until the input ends."""
    worker = Worker()
    steps: dict[str, Callable[..., Answer]] = {
        name: getattr(worker, name) for name in ("start", "open", "prefill", "decode", "rates", "memory")
    }
    for line in commands:
        command = json.loads(line)
        try:
            answer = steps[command.pop("do")](**command)
        except Absent as reason:
            answer = {"absent": str(reason)}
        except H2OError as error:
            answer = {"failed": str(error)}
        except MemoryError:
            answer = {"failed": "out of memory"}
        except Exception as error:  # a peer may raise anything; its row then reports it
            text = str(error).strip().splitlines()
            answer = {"failed": f"{type(error).__name__}: {text[0][:300] if text else 'no reason given'}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Standard output is the pipe to the parent; libraries print to standard error instead."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
