"""One request's jobs: a job for every choice of its answer, which share what they can of its prompts."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

from h2o_runtime.answers.constraint import Constraint
from h2o_runtime.completion import Completion, Request
from h2o_runtime.errors import ConfigError
from h2o_runtime.server.answer_constraint import AnswerConstraint
from h2o_runtime.server.choices import Choices
from h2o_runtime.server.inference import Failure, Job, JobEvent
from h2o_runtime.server.problems import Problem
from h2o_runtime.server.service_time import RequestWork
from h2o_runtime.server.slots import Ticket
from h2o_runtime.server.stream import ClientGone
from h2o_runtime.sessions.pool import SharedPrompt

Constrain = Callable[[AnswerConstraint, Callable[[], bool]], Constraint]


class Jobs:
    """They begin in order, each once the prompt of the one before is read: it goes on from that one's rows.

    name        the answer's id
    all         of them
    constraint  that each choice follows by a grammar of its own, which is compiled when its turn comes
    constrain   compiles it
    compiling   the work on grammars
    events      of all jobs, as they happen
    counted     whether /metrics has the request
    left        set once nobody waits for the answer
    prompts     those that several choices answer
    """

    def __init__(
        self,
        choices: Choices,
        constrain: Constrain,
        name: str,
        context: int,
        left: threading.Event,
        read: Callable[[Jobs], None],
        answered: Callable[[Jobs, Job], None],
        ended: Callable[[Jobs, Job], None],
    ) -> None:
        """context: the model's. read: called when a job's prompt is in the cache.
        answered: called at a job's last event, before any client learns of it. ended: called when the inference
        thread is done with a job. All in the event loop."""
        self.constraint, self.constrain, self.left = choices.constraint, constrain, left
        self.compiling: list[asyncio.Task[None]] = []
        self.events: asyncio.Queue[tuple[Job, JobEvent]] = asyncio.Queue()
        asked = [request.prompt.ids for request in choices.requests]
        self.prompts = {ids: SharedPrompt() for ids, count in Counter(asked).items() if count > 1}
        self.name, self.counted = name, False
        self._context, self._read, self._answered, self._ended = context, read, answered, ended
        self.all = [self._job(index, request) for index, request in enumerate(choices.requests)]
        self._tickets: list[Ticket] = []  # of those that have begun

    def _job(self, index: int, request: Request) -> Job:
        ids = request.prompt.ids
        room = self._context - len(ids) + 1
        limit = room if request.max_tokens is None else min(request.max_tokens, room)
        job = Job(self.name, index, request, RequestWork(len(ids), limit), self._happened, self.left)
        job.shared = self.prompts.get(ids)
        job.done = lambda: self._ended(self, job)
        return job

    def _happened(self, job: Job, event: JobEvent) -> None:
        self.events.put_nowait((job, event))
        if job.last is not None:
            self._answered(self, job)
        if job.read:
            self._read(self)

    def begin(self, ticket: Ticket) -> Job:
        """The next one's turn has come, by this ticket."""
        self._tickets.append(ticket)
        return self.all[len(self._tickets) - 1]

    def ticket(self, job: Job) -> Ticket:
        """The one that a job has begun with."""
        return self._tickets[job.index]

    @property
    def running(self) -> int:
        """How many have begun and not ended."""
        return sum(not job.over for job in self._begun)

    @property
    def may_begin(self) -> bool:
        """Whether there is a next one, and it can go on from what the one before has read."""
        begun = self._begun
        rest = len(begun) < len(self.all) and not self._stopped
        return rest and (not begun or begun[-1].read or begun[-1].over)

    @property
    def over(self) -> bool:
        """Whether none runs, and none will."""
        return not self.running and (self._stopped or len(self._begun) == len(self.all))

    @property
    def decided(self) -> bool:
        """Whether it is known how the request ended: one answer failed, or all have come."""
        ends = [job.last for job in self._begun]
        whole = None not in ends and (self._stopped or len(ends) == len(self.all))
        return whole or any(isinstance(end, Failure) for end in ends)

    @property
    def outcome(self) -> str | None:
        """How the request ended, for /metrics; None where its refusal is counted elsewhere."""
        ends = [job.last for job in self._begun]
        failures = [end.error for end in ends if isinstance(end, Failure)]
        if any(not isinstance(error, ConfigError | Problem | ClientGone) for error in failures):
            return "failed"
        if any(isinstance(error, ConfigError | Problem) for error in failures):
            return None
        reasons = [end.finish_reason for end in ends if isinstance(end, Completion)]
        cut = failures or "cancelled" in reasons or len(ends) < len(self.all)
        return "cancelled" if cut else reasons[-1]

    def cancel(self) -> None:
        """Those that run are stopped, as well as the work on grammars, and no more begin."""
        self.left.set()

    def give_up(self, error: Exception) -> None:
        """No answer comes any more to those that have none."""
        for job in self.all:
            job.put(Failure(error))

    @property
    def _begun(self) -> list[Job]:
        return self.all[: len(self._tickets)]

    @property
    def _stopped(self) -> bool:
        return self.left.is_set() or any(isinstance(job.last, Failure) for job in self._begun)
