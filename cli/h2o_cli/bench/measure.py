"""Interleaved rounds: every contestant runs once a round, so that a busy moment of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from h2o_cli.bench.contestants import Contestant
from h2o_cli.bench.engines.base import Absent
from h2o_cli.bench.process import Failed, WorkerProcess

# A second trial of a setting is worth its time only where it is short.
SHORT_TRIAL = 10.0
# Settings of one peer that stay this close to its best go through all rounds.
CLOSE = 1.04
# A setting that is so much slower than the peer's best is not tried at greater lengths.
HOPELESS = 1.15


@dataclass
class Series:
    """What one contestant did at one length. Seconds are a prompt's in prefill, a token's in decode."""

    contestant: Contestant
    version: str
    length: int
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # processor seconds of all threads
    phases: list[dict[str, float]] = field(default_factory=list)
    token: int = -1
    libraries: int = 0  # bytes resident before the model was loaded
    peak: int = 0


@dataclass(frozen=True)
class Missing:
    """A contestant that gave nothing at a length, and why. Length 0 stands for all."""

    name: str
    label: str
    length: int
    reason: str


@dataclass(frozen=True)
class Plan:
    """repetitions  rounds that are counted, after `warm_up` runs that are not
    decode_tokens  tokens a round, 0 where prefill is measured
    time_limit   seconds of one run above which a contestant is not tried, by its time at the last length
    """

    lengths: tuple[int, ...]
    repetitions: int
    warm_up: int
    decode_tokens: int
    time_limit: float


class Running:
    """An opened contestant and what it has done so far."""

    def __init__(self, contestant: Contestant, length: int, plan: Plan) -> None:
        self._plan = plan
        self._process = WorkerProcess(contestant.engine, contestant.settings)
        self.series = Series(contestant, self._process.version, length)
        room = plan.decode_tokens * (plan.repetitions + max(plan.warm_up, 1) + 1)
        try:
            self.series.libraries = self._process.ask("open", context=length + room)["libraries"]
            if plan.decode_tokens:
                self._process.ask("prefill", tokens=length)
        except BaseException:
            self.close()
            raise

    def step(self) -> tuple[float, dict[str, Any]]:
        """One run → (seconds, the worker's answer)."""
        if self._plan.decode_tokens:
            answer = self._process.ask("decode", tokens=self._plan.decode_tokens)
            times = sorted(answer["seconds"])
            return times[len(times) // 2], answer
        answer = self._process.ask("prefill", tokens=self.series.length)
        return answer["seconds"], answer

    def count(self) -> None:
        """One run that is kept."""
        seconds, answer = self.step()
        self.series.seconds.append(seconds)
        self.series.cpu.append(answer["cpu"])
        self.series.token = answer.get("token", -1)
        if answer.get("phases"):
            self.series.phases.append(answer["phases"])

    def finish(self) -> Series:
        self.series.peak = self._process.ask("memory")["peak"]
        return self.series

    def close(self) -> None:
        self._process.close()


class Measurement:
    """Runs a plan over contestants; `series` and `missing` fill as it goes."""

    def __init__(self, contestants: Sequence[Contestant], plan: Plan, tell: Callable[[str], None]) -> None:
        self._plan, self._tell = plan, tell
        self.series: list[Series] = []
        self.missing: list[Missing] = []
        self._last: dict[str, tuple[int, float]] = {}  # name → length, seconds of its best setting
        self._contestants = list(self._ready(contestants))

    def run(self) -> None:
        for length in sorted(self._plan.lengths):
            with ExitStack() as stack:
                running = [one for name in self._names() for one in self._opened(name, length, stack)]
                self._rounds(running, length)

    def _ready(self, contestants: Sequence[Contestant]) -> Iterator[Contestant]:
        for contestant in contestants:
            try:
                yield contestant.ready()
            except Absent as reason:
                if not any(known.name == contestant.name for known in self.missing):
                    self.missing.append(Missing(contestant.name, "", 0, str(reason)))

    def _names(self) -> list[str]:
        return list(dict.fromkeys(contestant.name for contestant in self._contestants))

    def _opened(self, name: str, length: int, stack: ExitStack) -> list[Running]:
        """The settings of one peer that go through the rounds, opened and warm."""
        settings = [one for one in self._contestants if one.name == name and one.sensible(length)]
        before, seconds = self._last.get(name, (length, 0.0))
        if seconds * (length / before) ** 2 > self._plan.time_limit:
            reason = f"would take longer than {self._plan.time_limit:g} s a run; {seconds:.1f} s at {before}"
            self.missing.append(Missing(name, "", length, reason))
            return []
        trials: list[tuple[float, Running]] = []
        for contestant in settings:
            self._tell(f"{length}: {name}, {contestant.label}")
            try:
                running = Running(contestant, length, self._plan)
            except (Absent, Failed) as reason:
                self._lose(contestant, length, reason)
                continue
            stack.callback(running.close)
            try:
                trials.append((self._warm_up(running, len(settings) > 1), running))
            except (Absent, Failed) as reason:
                self._lose(contestant, length, reason)
                running.close()
            trials = self._best_two(trials, length)
        return [running for _, running in trials]

    def _warm_up(self, running: Running, compared: bool) -> float:
        """The processor seconds of its best run: they vary less than the time does where others work too."""
        steps = [running.step() for _ in range(self._plan.warm_up)]
        if compared and min((step[0] for step in steps), default=0.0) < SHORT_TRIAL:
            steps.append(running.step())
        return min((step[1]["cpu"] for step in steps), default=0.0)

    def _best_two(self, trials: list[tuple[float, Running]], length: int) -> list[tuple[float, Running]]:
        """The fastest and, where it is close, the next; all others end, with a word on why."""
        trials = sorted(trials, key=lambda trial: trial[0])
        kept = [trial for trial in trials[:2] if trial[0] <= CLOSE * trials[0][0]]
        for seconds, running in trials[len(kept) :]:
            contestant = running.series.contestant
            reason = (
                f"another setting took {trials[0][0]:.4g} processor seconds in a trial, this {seconds:.4g}"
            )
            self.missing.append(Missing(contestant.name, contestant.label, length, reason))
            running.close()
            if trials[0][0] > 1.0 and seconds > HOPELESS * trials[0][0]:
                self._contestants.remove(contestant)
        return kept

    def _rounds(self, running: list[Running], length: int) -> None:
        for index in range(self._plan.repetitions):
            self._tell(f"{length}: round {index + 1} of {self._plan.repetitions}")
            turn = index % max(len(running), 1)
            for one in [*running[turn:], *running[:turn]]:  # nobody is always first
                try:
                    one.count()
                except (Absent, Failed) as reason:
                    self._lose(one.series.contestant, length, reason)
                    running = [other for other in running if other is not one]
        for one in running:
            series = one.finish()
            self.series.append(series)
            name, middle = series.contestant.name, sorted(series.seconds)[len(series.seconds) // 2]
            best = self._last.get(name, (0, 0.0))
            if best[0] < length or middle < best[1]:
                self._last[name] = (length, middle)

    def _lose(self, contestant: Contestant, length: int, reason: Exception) -> None:
        """Who is absent once is absent always; who fails may do better at another length."""
        everywhere = isinstance(reason, Absent)
        self.missing.append(
            Missing(contestant.name, contestant.label, 0 if everywhere else length, str(reason))
        )
        if everywhere and contestant in self._contestants:
            self._contestants.remove(contestant)
