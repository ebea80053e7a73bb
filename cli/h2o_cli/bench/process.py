"""The parent's end of a worker process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from h2o_cli.bench.systems.base import Absent

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
