"""Steps of a check. Each is a process with a time limit, so that none can stop the others."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

NOT_HERE = 77  # exit code of a script that cannot run here; its last line gives the reason

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


class NotRun(Exception):  # noqa: N818 - says what is the case, and is no error
    """The reason why a step cannot run here."""


@dataclass(frozen=True)
class Step:
    """name     as the report has it
    command  made when the step's turn comes; may raise NotRun
    limit    seconds that it may take
    after    steps that must have passed
    refusal  what the command prints, as a regular expression, where this machine does not let it work
    """

    name: str
    command: Callable[[], list[str]]
    limit: float
    after: tuple[str, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True)
class Outcome:
    check: str
    result: str
    why: str
    seconds: float


class Runner:
    """Runs steps in order. What they print goes to one log file; `tell` is called with all outcomes after each.

    deadline  on the clock of `time.monotonic`: running steps then end, and later ones do not start
    """

    def __init__(
        self, log: Path, deadline: float, tell: Callable[[list[Outcome]], None] = lambda outcomes: None
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._log = log
        self._deadline = deadline
        self._tell = tell

    def run(self, steps: Sequence[Step]) -> list[Outcome]:
        for step in steps:
            begin = time.monotonic()
            result, why = self._outcome(step)
            self.outcomes.append(Outcome(step.name, result, why, round(time.monotonic() - begin, 1)))
            self._tell(self.outcomes)
        return self.outcomes

    def _outcome(self, step: Step) -> tuple[str, str]:
        for outcome in self.outcomes:
            if outcome.check in step.after and outcome.result != PASSED:
                missing = outcome.why if outcome.result == NOT_RUN else f"{outcome.check} failed"
                return NOT_RUN, missing
        left = self._deadline - time.monotonic()
        if left < 1:
            return NOT_RUN, "no time was left"
        try:
            return self._execute(step, step.command(), min(step.limit, left))
        except NotRun as reason:
            return NOT_RUN, str(reason)
        except Exception as error:
            return FAILED, f"{type(error).__name__}: {error}"

    def _execute(self, step: Step, command: list[str], limit: float) -> tuple[str, str]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            log.write(f"\n=== {step.name}: {' '.join(command)}\n".encode())
            log.flush()
            begin = log.tell()
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},  # what was printed last stands last
            )
            try:
                code = process.wait(limit)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)  # its process group, including compilers
                process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    return FAILED, f"not done after {limit:.0f} s"
                raise
        lines = self._lines(begin)
        last = lines[-1]
        if code == NOT_HERE:
            return NOT_RUN, last
        refused = [line for line in lines if step.refusal and re.search(step.refusal, line)]
        if code and refused:
            return NOT_RUN, refused[0]
        if code:
            ended = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
            return FAILED, f"{ended}: {last}"
        return PASSED, ""

    def _lines(self, begin: int) -> list[str]:
        with self._log.open("rb") as log:
            log.seek(begin)
            lines = log.read().decode(errors="replace").split("\n")
        return [line.strip()[:300] for line in lines if line.strip()] or ["it printed nothing"]
