"""The way of one request: ticket, tokenization, turn, inference, answer."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from fastapi import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from h2o_runtime.answers.constraint import Constraint
from h2o_runtime.completion import Completion, Request, TextDelta
from h2o_runtime.errors import Cancelled, ConfigError, H2OError
from h2o_runtime.process import give_back_memory
from h2o_runtime.server.answer_constraint import AnswerConstraint
from h2o_runtime.server.answer_format import AnswerFormat, ChoiceFormat, Chunk
from h2o_runtime.server.choices import Choices
from h2o_runtime.server.inference import Failure, InferenceState, InferenceThread, Job, JobEvent, Progress
from h2o_runtime.server.metrics import Metrics
from h2o_runtime.server.problems import Problem, unavailable
from h2o_runtime.server.service_time import RequestWork, ServiceTime, whole_seconds
from h2o_runtime.server.slots import Slots, Ticket
from h2o_runtime.server.stream import KEEP_ALIVE, ClientGone, EventStream, event, unless_gone
from h2o_runtime.server.workers import Workers

log = logging.getLogger(__name__)

Result = TypeVar("Result")

Constrain = Callable[[AnswerConstraint, Callable[[], bool]], Constraint]

LEFT_OUT = "X-Schema-Left-Out"  # a header that names a schema's keywords which the answer may break

_COMPILERS = 2  # threads that wait for grammars: a slow one does not block the next

_QUIET = 10.0  # seconds without an event after which a comment keeps the connection alive


class RequestHandler:
    """Takes requests and handles them to their end, whatever happens. Runs in the event loop."""

    def __init__(
        self, inference: InferenceThread, metrics: Metrics, queue: int, queue_timeout: float | None
    ) -> None:
        self.inference = inference
        self.metrics = metrics
        self.service_time = ServiceTime()
        self.running: list[Job] = []  # those given to the inference thread
        self.slots = Slots(queue, self.retry_after)
        self._queue_timeout = queue_timeout
        # One thread for all prompts: its memory is bounded, and a long prompt does not delay the event loop.
        self._text = Workers(1, "text")
        self._lookups = Workers(1, "lookup")
        self._bodies = Workers(1, "body")
        self._grammars = Workers(_COMPILERS, "grammar")
        self._workers = (self._text, self._lookups, self._bodies, self._grammars)
        self._closed = False

    def retry_after(self) -> int:
        """Seconds until a running request is likely to finish, which frees a place in the queue."""
        remaining = (self.service_time.remaining(job.work) for job in self.running)
        return whole_seconds(min(remaining, default=0.0))

    def check(self) -> None:
        """Raise Problem if no request can be accepted now."""
        self.check_inference()
        self.slots.check()

    async def in_body_thread(self, work: Callable[[], Result]) -> Result:
        """Read a body away from the event loop."""
        return await self._bodies.run(work)

    async def in_text_thread(self, work: Callable[[], Result]) -> Result:
        """Run work on text outside the event loop; runtime errors become Problems."""
        try:
            return await self._text.run(work)
        except H2OError as error:
            raise Problem.of(error) from error

    async def look_up(self, http: HttpRequest, work: Callable[[], Result]) -> Result:
        """As `in_text_thread`, for text that no model will answer: no prompt waits for it, and it does not
        start after its client has left. Raises Problem, ClientGone.
        """
        try:
            return await unless_gone(http, self._lookups.run(work))
        except H2OError as error:
            raise Problem.of(error) from error

    async def answer(
        self,
        http: HttpRequest,
        make: Callable[[], Choices],
        shape: AnswerFormat,
        *,
        constrain: Constrain,
        stream: bool,
        progress: bool,
    ) -> Response:
        """Answer a validated request. Raises Problem, ClientGone.

        make: tokenizes it, in the text thread. constrain: compiles the grammar of one choice, in another
        thread; its argument says whether the grammar is no longer wanted.
        """
        try:
            jobs = await self._admitted(http, make, constrain, shape.name)
        except (Problem, ClientGone) as error:
            self.count_refused(error)
            raise
        response: Response
        if stream:
            response = EventStream(self._events(http.url.path, jobs, shape, progress), jobs.cancel)
        else:
            response = await self._whole(http, jobs, shape)
        if jobs.constraint is not None and jobs.constraint.left_out:
            response.headers[LEFT_OUT] = ", ".join(sorted(jobs.constraint.left_out))
        return response

    @property
    def silence(self) -> float:
        """Seconds without progress of any work on a request; 0 if there is none."""
        return max(each.silence for each in (self.inference, self._text, self._lookups, self._grammars))

    async def _admitted(
        self, http: HttpRequest, make: Callable[[], Choices], constrain: Constrain, name: str
    ) -> Jobs:
        """The request as running jobs, once the first is prepared and its turn has come.

        Meanwhile the client may leave, the queue's time-out applies, and requests that are ready go first.
        """
        self.check_inference()
        ticket, left = self.slots.enter(ready=False), threading.Event()
        preparing = asyncio.ensure_future(self._prepare(ticket, make, constrain, left))
        try:
            waited = await unless_gone(http, ticket.turn(self._queue_timeout))
            self.check_inference()
        except BaseException:
            left.set()
            ticket.leave()
            if preparing.done() and (choices := preparing.result()) is not None:
                _close(choices.requests[0])
            preparing.cancel()
            raise
        self.metrics.queue_wait.observe(waited)
        choices = preparing.result()
        assert choices is not None, "they were prepared, or they would have had no turn"
        return self._start(choices, constrain, name, ticket, left)

    async def _prepare(
        self, ticket: Ticket, make: Callable[[], Choices], constrain: Constrain, left: threading.Event
    ) -> Choices | None:
        """Prepare the choices, the first one's grammar, and the ticket; on failure the ticket gets the
        error.
        """
        try:
            choices = await self.in_text_thread(make)
            first, *others = choices.requests
            first = await self._constrained(first, choices.constraint, constrain, left)
        except Exception as error:
            ticket.refuse(error)
            return None
        ticket.prepared()
        return replace(choices, requests=[first, *others])

    async def _constrained(
        self, request: Request, wanted: AnswerConstraint | None, constrain: Constrain, left: threading.Event
    ) -> Request:
        if wanted is None:
            return request
        try:
            constraint = await self._grammars.run(lambda: constrain(wanted, left.is_set))
        except Cancelled as error:
            raise ClientGone from error
        except H2OError as error:
            raise Problem.of(error) from error
        return replace(request, constraint=constraint)

    def count_refused(self, error: Problem | ClientGone) -> None:
        """A request that never reached the inference thread."""
        if isinstance(error, ClientGone):
            self.metrics.finished("left")
        elif error.status_code >= 500:  # all others are counted where they leave
            self.metrics.finished("refused")

    def check_inference(self) -> None:
        """Raise Problem if there is no model yet."""
        if self.inference.state is InferenceState.LOADING:
            raise unavailable("the model is being loaded: try again in a moment", 1, "loading")
        if self.inference.state is InferenceState.FAILED:
            raise Problem(500, "inference has failed: the server needs a restart", code="inference_failed")

    def give_back_memory(self) -> None:
        """Return memory after a large request, unless other requests run, which do so themselves."""
        if not self.slots.busy and not self._closed:
            self._text.submit(give_back_memory)

    def close(self) -> None:
        self._closed = True
        for workers in self._workers:
            workers.close()

    def ended(self, timeout: float) -> bool:
        """Wait for the threads, each for `timeout` seconds → whether they ended."""
        return all(workers.ended(timeout) for workers in self._workers)

    def _start(
        self, choices: Choices, constrain: Constrain, name: str, ticket: Ticket, left: threading.Event
    ) -> Jobs:
        """Consecutive jobs; the end of the last one frees their slot, whether or not a client listens."""
        jobs = Jobs(choices, constrain, left)
        for request in choices.requests:
            work = RequestWork(len(request.prompt.ids), self._limit(request))
            jobs.append(Job(name, request, work, partial(self._done, jobs, len(jobs), ticket), left))
        self._submit(jobs[0])
        return jobs

    def _limit(self, request: Request) -> int:
        """Maximum tokens of the answer."""
        room = self.inference.model.generator.context - len(request.prompt.ids) + 1
        return room if request.max_tokens is None else min(request.max_tokens, room)

    def _submit(self, job: Job) -> None:
        self.running.append(job)
        self.inference.submit(job)

    def _done(self, jobs: Jobs, index: int, ticket: Ticket) -> None:
        """The inference thread has ended a job: start the next job, or the next client's."""
        job = jobs[index]
        if job in self.running:  # a job whose grammar could not be compiled never ran
            self.running.remove(job)
        _close(job.request)
        ended = isinstance(job.last, Failure) or job.cancelled() or job is jobs[-1]
        self._account(job, ended)
        if ended:
            ticket.leave()
            self.give_back_memory()
        else:
            jobs.going_on = asyncio.ensure_future(self._go_on(jobs, jobs[index + 1]))

    async def _go_on(self, jobs: Jobs, job: Job) -> None:
        """The next of an answer's jobs, with its own grammar."""
        try:
            job.request = await self._constrained(job.request, jobs.constraint, jobs.constrain, jobs.left)
        except (Problem, ClientGone) as error:
            job.put(Failure(error))
            job.done()
        else:
            self._submit(job)

    async def _whole(self, http: HttpRequest, jobs: Jobs, shape: AnswerFormat) -> Response:
        choices, completions = [], []
        try:
            for index, job in enumerate(jobs):
                completions.append(await unless_gone(http, self._last(job)))
                choices.append(shape.choice(index, job.request.prompt).whole(completions[-1]))
        finally:
            jobs.cancel()
        return JSONResponse(shape.whole(choices, completions))

    async def _last(self, job: Job) -> Completion:
        """Wait for the end. Raises Problem."""
        while True:
            happened = await job.events.get()
            if isinstance(happened, (Completion, Failure)):
                return _completion(happened)

    async def _events(self, path: str, jobs: Jobs, shape: AnswerFormat, progress: bool) -> AsyncIterator[str]:
        completions = []
        try:
            for index, job in enumerate(jobs):
                choice = shape.choice(index, job.request.prompt)
                async for text in _choice_events(job, shape, choice, progress):
                    yield text
                completions.append(_completion(job.last))
            for chunk in shape.end(completions):
                yield event(chunk)
            if shape.done is not None:
                yield f"data: {shape.done}\n\n"
        except Problem as problem:  # the status has already been sent
            if problem.status_code < 500:
                self.metrics.finished("invalid")
            yield event(problem.body(path))

    def _account(self, job: Job, ended: bool) -> None:
        """Count a finished job, whether or not a client still listens.

        ended: whether no other job of the same answer follows
        """
        last = job.last
        if not isinstance(last, Completion):
            if not isinstance(last, Failure) or not isinstance(
                last.error, ConfigError | Problem | ClientGone
            ):
                self.metrics.finished("failed")
            return
        self.metrics.worked(last)
        if ended:
            self.metrics.finished(last.finish_reason)
        self.service_time.measured(last.timings)
        t = last.timings
        log.info(
            "%s: prompt %d (+%d cached) in %.0f ms, answer %d in %.0f ms, %s",
            job.name,
            t.prompt_n,
            t.cache_n,
            t.prompt_ms,
            t.predicted_n,
            t.predicted_ms,
            last.finish_reason,
        )


class Jobs(list[Job]):
    """The jobs of one answer, which run one after the other. A choice's grammar is compiled when its turn
    comes.
    """

    def __init__(self, choices: Choices, constrain: Constrain, left: threading.Event) -> None:
        super().__init__()
        self.constraint, self.constrain, self.left = choices.constraint, constrain, left
        self.going_on: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        self.left.set()


async def _choice_events(
    job: Job, shape: AnswerFormat, choice: ChoiceFormat, progress: bool
) -> AsyncIterator[str]:
    """A stream's events of one choice, up to its end. Raises Problem."""
    for chunk in choice.begin():
        yield event(chunk)
    told = time.monotonic()
    while job.last is None or not job.events.empty():
        for chunk in _chunks(job, await _next(job.events), shape, choice, progress):
            yield event(chunk)
            told = time.monotonic()
        if time.monotonic() - told >= _QUIET:
            yield KEEP_ALIVE
            told = time.monotonic()


def _close(request: Request) -> None:
    if request.constraint is not None:
        request.constraint.close()


def _chunks(
    job: Job, happened: JobEvent | None, shape: AnswerFormat, choice: ChoiceFormat, progress: bool
) -> Iterable[Chunk]:
    """The client's view of an event, which may be empty. Raises Problem if the event ended the answer."""
    if isinstance(happened, Progress):
        return [shape.progress(happened, time.monotonic() - job.work.began)] if progress else ()
    if isinstance(happened, TextDelta):
        return choice.text_delta(happened)
    if isinstance(happened, (Completion, Failure)):
        return choice.end(_completion(happened))
    return ()


def _completion(last: Completion | Failure | None) -> Completion:
    """The answer. Raises Problem if there is none."""
    assert last is not None, "the job has ended"
    if isinstance(last, Failure):
        if isinstance(last.error, Problem):
            raise last.error
        if isinstance(last.error, H2OError):
            raise Problem.of(last.error)
        raise Problem(500, "inference has failed: the server's log says why", code="inference_failed")
    if last.finish_reason == "cancelled":  # the client, if it still listens, did not cause that
        raise unavailable("the server is shutting down", code="shutting_down")
    return last


async def _next(events: asyncio.Queue[JobEvent]) -> JobEvent | None:
    """The next event; None if there was none for a while."""
    try:
        return await asyncio.wait_for(events.get(), _QUIET)
    except asyncio.TimeoutError:
        return None
