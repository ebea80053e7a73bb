"""A contestant's own process: reads commands as JSON lines, answers each with one line.

    {"do": "start", "system": …, "settings": …}   → {"version"}
    {"do": "open", "context": n}                  → {"libraries": bytes in use before anything was loaded}
    {"do": "prefill", "tokens": n}                → {"seconds", "cpu", "token", "phases"}
    {"do": "nll", "tokens": n}                    → {"nll": of a token of that prompt, or null}
    {"do": "decode", "tokens": n}                 → {"seconds": [one a token], "cpu": a token's}
    {"do": "rates"}                               → the machine's measured rates
    {"do": "memory"}                              → {"peak": bytes}

An answer {"absent": reason} or {"failed": reason} ends the contestant's part.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from h2o_cli.bench.systems.base import Absent, Ids, LikelihoodSystem, System
from h2o_cli.bench.systems.registry import make_system
from h2o_runtime.errors import H2OError
from h2o_runtime.process import peak_bytes, resident_bytes

Answer = dict[str, Any]
SMALLEST_VOCABULARY = 256


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
        self._system = make_system(system, settings)
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

    def nll(self, tokens: int, following: int) -> Answer:
        system: object = self._active
        if not isinstance(system, LikelihoodSystem):
            return {"nll": None}
        ids = self._ids(tokens + following)
        return {"nll": system.continuation_nll(ids[:tokens], ids[tokens:])}

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

        from h2o_cli.bench.floor import measure_gpu_rates, measure_rates

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
        name: getattr(worker, name)
        for name in ("start", "open", "prefill", "nll", "decode", "rates", "memory")
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
