"""Interleaved rounds: every contestant runs once per round, so a busy moment affects all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from h2o_cli.bench.contestants import Contestant
from h2o_cli.bench.systems.system import Absent
from h2o_cli.bench.worker import Failed, WorkerProcess

# A setting gets a second trial only if it takes less than this.
SHORT_TRIAL = 10.0
# Settings of one peer this close to its best go through all rounds.
CLOSE = 1.04
# A setting this much slower than the peer's best is not tried at greater lengths.
HOPELESS = 1.15


@dataclass
class Series:
    """The measurements of one contestant at one length. Seconds are per prompt in prefill, per token in
    decode.
    """

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
    """A contestant without a result at a length, and the reason. Length 0 stands for all."""

    name: str
    label: str
    length: int
    reason: str


@dataclass(frozen=True)
class Rounds:
    """repetitions  rounds that are counted, after a run that is not
    decode_tokens  tokens a round, 0 where prefill is measured
    time_limit   seconds of one run above which a contestant is not tried, by its time at the last length
    """

    lengths: tuple[int, ...]
    repetitions: int
    decode_tokens: int
    time_limit: float

    @property
    def room(self) -> int:
        """The most tokens after a prompt."""
        return self.decode_tokens * (self.repetitions + 2)


class OpenContestant:
    """An open contestant and its measurements so far."""

    def __init__(self, contestant: Contestant, length: int, rounds: Rounds) -> None:
        self._rounds = rounds
        self._process = WorkerProcess(contestant.system, contestant.settings)
        self.series = Series(contestant, self._process.version, length)
        try:
            self.series.libraries = self._process.ask("open", context=length + rounds.room)["libraries"]
            if rounds.decode_tokens:
                self._process.ask("prefill", tokens=length)
        except BaseException:
            self.close()
            raise

    def step(self) -> tuple[float, dict[str, Any]]:
        """One run → (seconds, the worker's answer)."""
        if self._rounds.decode_tokens:
            answer = self._process.ask("decode", tokens=self._rounds.decode_tokens)
            times = sorted(answer["seconds"])
            return times[len(times) // 2], answer
        answer = self._process.ask("prefill", tokens=self.series.length)
        return answer["seconds"], answer

    def count(self) -> None:
        """One run whose time is recorded."""
        seconds, answer = self.step()
        self.series.seconds.append(seconds)
        self.series.cpu.append(answer["cpu"])
        self.series.token = answer.get("token", -1)
        if answer.get("phases"):
            self.series.phases.append(answer["phases"])
        self.series.peak = self._process.ask("memory")["peak"]

    def close(self) -> None:
        self._process.close()


Trial = tuple[float, OpenContestant]  # processor seconds of its best warm run


class Measurement:
    """Runs rounds over contestants; `series` and `missing` grow as it goes."""

    def __init__(
        self,
        contestants: Sequence[Contestant],
        rounds: Rounds,
        tell: Callable[[str], None],
        after_round: Callable[[], object] = lambda: None,
    ) -> None:
        """after_round: called when `series` has grown."""
        self._rounds, self._tell, self._after_round = rounds, tell, after_round
        self.series: list[Series] = []
        self.missing: list[Missing] = []
        self._last: dict[str, tuple[int, float]] = {}  # name → length, seconds of its best setting
        self._contestants = list(self._ready(contestants))
        self._order_of_names = self._names()

    def run(self) -> None:
        for length in sorted(self._rounds.lengths):
            with ExitStack() as stack:
                opened = [entry for name in self._names() for entry in self._opened(name, length, stack)]
                self._run_rounds(opened, length)

    def _ready(self, contestants: Sequence[Contestant]) -> Iterator[Contestant]:
        for contestant in contestants:
            try:
                yield contestant.ready()
            except Absent as reason:
                if not any(known.name == contestant.name for known in self.missing):
                    self.missing.append(Missing(contestant.name, "", 0, str(reason)))

    def _names(self) -> list[str]:
        return list(dict.fromkeys(contestant.name for contestant in self._contestants))

    def _opened(self, name: str, length: int, stack: ExitStack) -> list[OpenContestant]:
        """The settings of one peer that go through the rounds, opened and warm."""
        settings = [entry for entry in self._contestants if entry.name == name and entry.sensible(length)]
        before, seconds = self._last.get(name, (length, 0.0))
        if seconds * (length / before) ** 2 > self._rounds.time_limit:
            reason = (
                f"would take longer than {self._rounds.time_limit:g} s a run; {seconds:.1f} s at {before}"
            )
            self.missing.append(Missing(name, "", length, reason))
            return []
        trials: list[Trial] = []
        for contestant in settings:
            self._tell(f"{length}: {name}, {contestant.label}")
            try:
                opened = OpenContestant(contestant, length, self._rounds)
            except (Absent, Failed) as reason:
                self._lose(contestant, length, reason)
                continue
            stack.callback(opened.close)
            try:
                trials.append((self._warm_up(opened, len(settings) > 1), opened))
            except (Absent, Failed) as reason:
                self._lose(contestant, length, reason)
                opened.close()
            trials = self._best_two(trials, length)
        return [opened for _, opened in trials]

    def _warm_up(self, opened: OpenContestant, compared: bool) -> float:
        """The processor seconds of its best run: they vary less than the time if other processes run."""
        steps = [opened.step()]
        if compared and steps[0][0] < SHORT_TRIAL:
            steps.append(opened.step())
        return float(min(step[1]["cpu"] for step in steps))

    def _best_two(self, trials: list[Trial], length: int) -> list[Trial]:
        """The fastest setting and, if it is close, the next; all others end, with a reason."""
        trials = sorted(trials, key=lambda trial: trial[0])
        fastest = [trial for trial in trials[:2] if trial[0] <= CLOSE * trials[0][0]]
        for seconds, opened in trials[len(fastest) :]:
            contestant = opened.series.contestant
            reason = (
                f"another setting took {trials[0][0]:.4g} processor seconds in a trial, this {seconds:.4g}"
            )
            self.missing.append(Missing(contestant.name, contestant.label, length, reason))
            opened.close()
            if trials[0][0] > 1.0 and seconds > HOPELESS * trials[0][0]:
                self._contestants.remove(contestant)
        return fastest

    def _run_rounds(self, opened: list[OpenContestant], length: int) -> None:
        for index in range(self._rounds.repetitions):
            self._tell(f"{length}: round {index + 1} of {self._rounds.repetitions}")
            turn = index % max(len(opened), 1)
            for current in [*opened[turn:], *opened[:turn]]:  # so that no contestant is always first
                try:
                    current.count()
                except (Absent, Failed) as reason:
                    self._lose(current.series.contestant, length, reason)
                    opened = [entry for entry in opened if entry is not current]
                    self.series = [series for series in self.series if series is not current.series]
                    continue
                if current.series not in self.series:
                    self.series.append(current.series)
            self.series.sort(key=self._order)
            self._after_round()
        for series in (entry.series for entry in opened):
            name, middle = series.contestant.name, sorted(series.seconds)[len(series.seconds) // 2]
            best = self._last.get(name, (0, 0.0))
            if best[0] < length or middle < best[1]:
                self._last[name] = (length, middle)

    def _order(self, series: Series) -> tuple[int, int]:
        return series.length, self._order_of_names.index(series.contestant.name)

    def _lose(self, contestant: Contestant, length: int, reason: Exception) -> None:
        """An absent contestant is absent at all lengths; a failed one may succeed at another length."""
        everywhere = isinstance(reason, Absent)
        self.missing.append(
            Missing(contestant.name, contestant.label, 0 if everywhere else length, str(reason))
        )
        if everywhere and contestant in self._contestants:
            self._contestants.remove(contestant)
