"""The steps of one request: ticket, tokenization, turn, inference, answer."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import TypeVar
from urllib.parse import quote

from fastapi import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from h2o_runtime.answers.completion import Completion
from h2o_runtime.answers.constraint import Constraint
from h2o_runtime.answers.request import Request
from h2o_runtime.errors import Cancelled, H2OError
from h2o_runtime.process import give_back_memory
from h2o_server.about.metrics import Metrics
from h2o_server.answers.constraint import AnswerConstraint, Choices
from h2o_server.answers.format import AnswerFormat
from h2o_server.http.problems import Problem, unavailable
from h2o_server.http.stream import ClientGone, EventStream, event, unless_gone
from h2o_server.http.workers import Workers
from h2o_server.scheduling.inference import Failure, InferenceState, InferenceThread, Job
from h2o_server.scheduling.job_events import all_ended, choice_events, completion_of
from h2o_server.scheduling.jobs import Constrain, Jobs
from h2o_server.scheduling.service_time import ServiceTime, whole_seconds
from h2o_server.scheduling.slots import Slots, Ticket

log = logging.getLogger(__name__)

Result = TypeVar("Result")

LEFT_OUT = "X-Schema-Left-Out"  # a header that names a schema's keywords which the answer may break
LEFT_ALONE = "X-Left-Alone"  # a header that names what the request has and no answer here depends on

_MOST_TOLD = 4096  # characters: clients refuse long headers
_COMPILERS = 2  # threads that wait for grammars: a slow one does not block the next


class RequestHandler:
    """Takes requests and handles them to their end, whatever happens. Runs in the event loop."""

    def __init__(
        self, inference: InferenceThread, metrics: Metrics, queue: int, queue_timeout: float | None
    ) -> None:
        self.inference = inference
        self.metrics = metrics
        self.service_time = ServiceTime()
        self.running: list[Job] = []  # those given to the inference thread
        self.answers: list[Jobs] = []  # those that are not over
        self.slots = Slots(queue, self.retry_after)
        self.slots.freed = self._spread_all
        self._queue_timeout = queue_timeout
        # One thread for all prompts: its memory is bounded, and a long prompt does not delay the event loop.
        self._text = Workers(1, "text")
        self._lookups = Workers(1, "lookup")
        self.bodies = Workers(1, "body")
        self._grammars = Workers(_COMPILERS, "grammar")
        self._workers = (self._text, self._lookups, self.bodies, self._grammars)
        self._closed = False
        self._told: set[int | None] = set()  # slots of which the log has told a short difference

    def retry_after(self) -> int:
        """Seconds until a running request is likely to finish, which frees a place in the queue."""
        remaining = (self.service_time.remaining(job.work) for job in self.running)
        return whole_seconds(min(remaining, default=0.0))

    def check(self) -> None:
        """Raise Problem if no request can be accepted now."""
        self.check_inference()
        self.slots.check()

    async def in_text_thread(self, work: Callable[[], Result]) -> Result:
        """Run work on text outside the event loop; runtime errors become Problems."""
        try:
            return await self._text.run(work)
        except H2OError as error:
            raise self._problem(error) from error

    async def look_up(self, http: HttpRequest, work: Callable[[], Result]) -> Result:
        """As `in_text_thread`, for text that the model does not answer. No prompt waits for it, and it does not
        start after its client has disconnected. Raises Problem, ClientGone.
        """
        try:
            return await unless_gone(http, self._lookups.run(work))
        except H2OError as error:
            raise self._problem(error) from error

    def _problem(self, error: H2OError) -> Problem:
        return Problem.of(error, self.inference.model.generator.model.max_position_embeddings)

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
        jobs = await self._begun(http, make, constrain, shape.name)
        response: Response
        if stream:
            response = EventStream(self._events(jobs, shape, progress), jobs.cancel)
        else:
            response = await self._whole(http, jobs, shape)
        if jobs.constraint is not None and jobs.constraint.left_out:
            response.headers[LEFT_OUT] = _as_header(jobs.constraint.left_out)
        if jobs.left_alone:
            told = ", ".join(sorted(jobs.left_alone))
            response.headers[LEFT_ALONE] = told if len(told) <= _MOST_TOLD else f"{told[:_MOST_TOLD]}..."
            log.debug("%s: left alone: %s", jobs.name, response.headers[LEFT_ALONE])
        return response

    async def complete(
        self, http: HttpRequest, make: Callable[[], Choices], constrain: Constrain, name: str
    ) -> list[Completion]:
        """The completions of a validated request, for a route that writes its answer by itself.

        `make`, `constrain` and errors are those of `answer`. name: the answer's id.
        """
        return await self._completions(http, await self._begun(http, make, constrain, name))

    @property
    def silence(self) -> float:
        """Seconds without progress of any work on a request; 0 if there is none."""
        return max(each.silence for each in (self.inference, self._text, self._lookups, self._grammars))

    async def _begun(
        self, http: HttpRequest, make: Callable[[], Choices], constrain: Constrain, name: str
    ) -> Jobs:
        """The request as running jobs, after the first job is prepared and its turn has come.

        Meanwhile the client may disconnect, the queue's time-out applies, and requests that are ready go first.
        Whatever is raised, the ticket and the grammar are given back.
        """
        self.check_inference()
        ticket, left = self.slots.enter(), threading.Event()
        preparing = asyncio.ensure_future(self._prepare(ticket, make, constrain, left))
        try:
            waited = await unless_gone(http, ticket.turn(self._queue_timeout))
            self.check_inference()
            self.metrics.queue_wait.observe(waited)
            choices = preparing.result()
            assert choices is not None, "they were prepared, or they would have had no turn"
            context = self.inference.model.generator.context
            jobs = Jobs(choices, constrain, name, context, left, self._spread, self._answered, self._done)
        except BaseException:
            left.set()
            ticket.leave()
            if preparing.done() and (choices := preparing.result()) is not None:
                _close(choices.requests[0])
            preparing.cancel()
            raise
        http.state.counted = True  # by its jobs, whose slots become free when they end, even without a client
        self.answers.append(jobs)
        self._submit(jobs.begin(ticket))
        return jobs

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
            constraint = await self._grammars.run(lambda: constrain(wanted, left.is_set), Constraint.close)
        except Cancelled as error:
            raise ClientGone from error
        except H2OError as error:
            raise self._problem(error) from error
        try:
            return replace(request, constraint=constraint)
        except BaseException:
            constraint.close()
            raise

    def check_inference(self) -> None:
        """Raise Problem if there is no model yet, or none any more."""
        if self.inference.state is InferenceState.LOADING:
            raise unavailable("the model is being loaded: try again in a moment", 1, "loading")
        if self.inference.state is InferenceState.FAILED:
            raise Problem(500, "inference has failed: the server needs a restart", code="inference_failed")
        try:
            self.inference.model.check_files()
        except H2OError as error:
            raise self._problem(error) from error

    def give_back_memory(self) -> None:
        """Return memory after a large request, unless other requests run: they return it when they end."""
        if not self.slots.busy and not self._closed:
            self._text.submit(give_back_memory)

    def close(self) -> None:
        self._closed = True
        for workers in self._workers:
            workers.close()

    def ended(self, timeout: float) -> bool:
        """Wait for the threads, each for `timeout` seconds → whether they ended."""
        return all(workers.ended(timeout) for workers in self._workers)

    def _submit(self, job: Job) -> None:
        self.running.append(job)
        self.inference.submit(job)

    def _spread_all(self) -> None:
        for jobs in list(self.answers):
            self._spread(jobs)

    def _spread(self, jobs: Jobs) -> None:
        """Begin an answer's next jobs in slots that no other request waits for."""
        while jobs.may_begin and (ticket := self.slots.spare()) is not None:
            self._begin(jobs, ticket)

    def _begin(self, jobs: Jobs, ticket: Ticket) -> None:
        """Begin the next of an answer's jobs, after its own grammar is compiled."""
        job = jobs.begin(ticket)
        if jobs.constraint is None:
            self._submit(job)
        else:
            jobs.compiling.append(asyncio.ensure_future(self._compile(jobs, job)))

    async def _compile(self, jobs: Jobs, job: Job) -> None:
        try:
            job.request = await self._constrained(job.request, jobs.constraint, jobs.constrain, jobs.left)
        except Exception as error:
            if not isinstance(error, (Problem, ClientGone)):
                log.critical("%s failed before it ran", job.name, exc_info=error)
            job.put(Failure(error))
            job.end()
        else:
            self._submit(job)

    def _answered(self, jobs: Jobs, job: Job) -> None:
        """Count a job after its last event, before its client gets the event."""
        self._account(job)
        self._count(jobs)

    def _count(self, jobs: Jobs) -> None:
        """Count a request once its outcome is known."""
        if not jobs.decided or jobs.counted:
            return
        jobs.counted = True
        if jobs.all[0].request.pooling is not None:
            _log_embeddings(jobs)
        self.metrics.finished(jobs.outcome)

    def _done(self, jobs: Jobs, job: Job) -> None:
        """The inference thread is done with a job: give its slot to the answer's next job, or to the next
        client."""
        if job in self.running:  # one whose grammar could not be compiled never ran
            self.running.remove(job)
        _close(job.request)
        ticket, over = jobs.ticket(job), jobs.over
        if over:
            self.answers.remove(jobs)
            jobs.give_up(ClientGone())  # those that never began
            for prompt in jobs.prompts.values():
                self.inference.forget(prompt)
            self._count(jobs)
        if jobs.may_begin and (not jobs.running or not self.slots.wanted):
            self._begin(jobs, ticket)
        else:
            ticket.leave()
        if over:
            self.give_back_memory()

    async def _whole(self, http: HttpRequest, jobs: Jobs, shape: AnswerFormat) -> Response:
        completions = await self._completions(http, jobs)
        choices = [
            shape.choice(job.index, job.request.prompt).whole(completion)
            for job, completion in zip(jobs.all, completions, strict=True)
        ]
        return JSONResponse(shape.whole(choices, completions))

    async def _completions(self, http: HttpRequest, jobs: Jobs) -> list[Completion]:
        """The completions of all jobs, after they have ended. Raises Problem, ClientGone."""
        try:
            await unless_gone(http, all_ended(jobs))
        finally:
            jobs.cancel()
        return [completion_of(job.last) for job in jobs.all]

    async def _events(self, jobs: Jobs, shape: AnswerFormat, progress: bool) -> AsyncIterator[str]:
        try:
            async for text in choice_events(jobs, shape, progress):
                yield text
            for chunk in shape.end([completion_of(job.last) for job in jobs.all]):
                yield event(chunk)
            if shape.done is not None:
                yield f"data: {shape.done}\n\n"
        except Problem as problem:  # the status has already been sent
            for chunk in shape.failed(problem):
                yield event(chunk)

    def _account(self, job: Job) -> None:
        """Count a job's work, even if its client has disconnected."""
        last = job.last
        if not isinstance(last, Completion):
            return
        self.metrics.worked(last)
        self.service_time.measured(last.timings)
        if job.request.pooling is not None:  # a line for all of a request
            return
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
        if last.difference is not None and job.slot not in self._told:
            self._told.add(job.slot)
            log.warning(
                "%s: %d cached tokens were read again, as the prompt changed at token %d (other tokens: %d): "
                "let the client send what changes at the end",
                job.name,
                last.difference.again,
                last.difference.at,
                last.difference.tokens,
            )


def _log_embeddings(jobs: Jobs) -> None:
    done = [job.last.timings for job in jobs.all if isinstance(job.last, Completion)]
    tokens, ms = sum(one.prompt_n for one in done), sum(one.prompt_ms for one in done)
    log.info(
        "%s: embedded %d of %d inputs, %d tokens in %.0f ms", jobs.name, len(done), len(jobs.all), tokens, ms
    )


def _as_header(keywords: Iterable[str]) -> str:
    """A client's own keywords may be many, long, and of any characters."""
    return ", ".join(quote(keyword[:100], safe="$", errors="replace") for keyword in sorted(keywords)[:50])


def _close(request: Request) -> None:
    if request.constraint is not None:
        request.constraint.close()
