"""Who reads a prompt and decodes behind it: this runtime with a policy, and llama.cpp in a process of its own."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from h2o_runtime import Generator
from h2o_runtime.policies.prefill.base import PrefillPolicy

Ids = NDArray[np.int64]
PATIENCE = 120.0  # seconds for llama.cpp to load a model: it may wait for ever where it cannot


@dataclass(frozen=True)
class Turn:
    """Seconds of a prompt, of a step behind it, and processor seconds of everything."""

    prompt_s: float
    step_s: float
    cpu_s: float


class Contestant(Protocol):
    def first(self, ids: Ids) -> int:
        """The likeliest token behind a prompt."""

    def turn(self, ids: Ids, steps: int) -> Turn:
        """Reads the prompt anew, then decodes greedily."""


@dataclass(frozen=True)
class Ours:
    generator: Generator
    policy: PrefillPolicy[Any]

    def first(self, ids: Ids) -> int:
        return int(self.generator.prefill(ids, self.policy, reuse=False).argmax())

    def turn(self, ids: Ids, steps: int) -> Turn:
        cpu, begin = time.process_time(), time.perf_counter()
        logits = self.generator.prefill(ids, self.policy, reuse=False)
        read = time.perf_counter()
        for _ in range(steps):
            logits = self.generator.decode(int(logits.argmax()))
        end = time.perf_counter()
        return Turn(read - begin, (end - read) / steps, time.process_time() - cpu)


class Unavailable(Exception):  # noqa: N818 - an outcome that the results report
    """llama.cpp cannot take part; the text says why."""


class LlamaCpp:
    """llama.cpp's server, with its defaults; ends with `close`."""

    def __init__(self, python: Path, file: Path, context: int, threads: int) -> None:
        """python: one that has xllamacpp. Raises Unavailable."""
        worker = Path(__file__).with_name("llama_worker.py")
        self._errors = TemporaryFile()  # noqa: SIM115 - closed in `close`
        try:
            self._process = subprocess.Popen(
                [python, worker, file, str(context), str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        except OSError as error:
            raise Unavailable(f"{python}: {error.strerror}") from None
        limit = Timer(PATIENCE, self._process.kill)
        limit.start()
        try:
            self.version = str(self._answer()["version"])
        except Unavailable:
            self.close()
            raise
        finally:
            limit.cancel()

    def first(self, ids: Ids) -> int:
        return int(self._ask(ids, 1, first=True)["token"])

    def turn(self, ids: Ids, steps: int) -> Turn:
        return Turn(**self._ask(ids, steps))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _ask(self, ids: Ids, steps: int, **more: bool) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ids": ids.tolist(), "steps": steps, **more}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").splitlines()
            telling = (
                [one for one in lines if "rror" in one or "ASSERT" in one] or lines or ["it said nothing"]
            )
            raise Unavailable(f"its process ended: {telling[-1][:200]}")
        answer: dict[str, Any] = json.loads(line)
        return answer
