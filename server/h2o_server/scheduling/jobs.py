"""One request's jobs: one for every choice of its answer. Jobs share the rows of equal prompts."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

from h2o_runtime.answers.completion import Completion
from h2o_runtime.answers.constraint import Constraint
from h2o_runtime.answers.request import Request
from h2o_runtime.sessions.pool import SharedPrompt
from h2o_server.answers.constraint import AnswerConstraint, Choices
from h2o_server.http.problems import Problem, outcome_of
from h2o_server.http.stream import ClientGone
from h2o_server.scheduling.inference import Failure, Job, JobEvent
from h2o_server.scheduling.service_time import RequestWork
from h2o_server.scheduling.slots import Ticket

Constrain = Callable[[AnswerConstraint, Callable[[], bool]], Constraint]


class Jobs:
    """Jobs begin in order. Each begins when the prompt of the previous job is read, and continues from its rows.

    name        the answer's id
    all         all jobs
    constraint  of each choice, which has its own grammar; that is compiled when the choice's turn comes
    constrain   compiles the grammar
    compiling   the compilations of grammars
    events      of all jobs, as they happen
    counted     whether /metrics has the request
    left        set when no client waits for the answer any more
    left_alone  what the client's request has that no answer depends on
    prompts     prompts that several choices share
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
        self.left_alone = choices.left_alone
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
        """Begin the next job, whose turn has come by this ticket."""
        self._tickets.append(ticket)
        return self.all[len(self._tickets) - 1]

    def ticket(self, job: Job) -> Ticket:
        """The ticket with which a job has begun."""
        return self._tickets[job.index]

    @property
    def running(self) -> int:
        """The number of jobs that have begun and not ended."""
        return sum(not job.over for job in self._begun)

    @property
    def may_begin(self) -> bool:
        """Whether there is a next job, and the prompt of the previous one is read."""
        begun = self._begun
        rest = len(begun) < len(self.all) and not self._stopped
        return rest and (not begun or begun[-1].read or begun[-1].over)

    @property
    def over(self) -> bool:
        """Whether none runs, and none will."""
        return not self.running and (self._stopped or len(self._begun) == len(self.all))

    @property
    def decided(self) -> bool:
        """Whether the request's outcome is known: one job has failed, or all have ended."""
        ends = [job.last for job in self._begun]
        whole = None not in ends and (self._stopped or len(ends) == len(self.all))
        return whole or any(isinstance(end, Failure) for end in ends)

    @property
    def outcome(self) -> str:
        """The request's outcome for /metrics."""
        ends = [job.last for job in self._begun]
        failures = [end.error for end in ends if isinstance(end, Failure)]
        statuses = [Problem.of(error).status_code for error in failures if not isinstance(error, ClientGone)]
        if statuses:
            return outcome_of(max(statuses))
        reasons = [end.finish_reason for end in ends if isinstance(end, Completion)]
        cut = failures or "cancelled" in reasons or len(ends) < len(self.all)
        return "cancelled" if cut else reasons[-1]

    def cancel(self) -> None:
        """Stop running jobs and the compilation of grammars, and begin no more jobs."""
        self.left.set()

    def give_up(self, error: Exception) -> None:
        """End the jobs that have no last event: the inference thread will not report one."""
        for job in self.all:
            job.put(Failure(error))

    @property
    def _begun(self) -> list[Job]:
        return self.all[: len(self._tickets)]

    @property
    def _stopped(self) -> bool:
        return self.left.is_set() or any(isinstance(job.last, Failure) for job in self._begun)
