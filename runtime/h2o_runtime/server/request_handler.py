"""The way of one request: ticket, tokenization, turn, inference, answer."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from fastapi import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from h2o_runtime.completion import Completion, Request, TextPiece
from h2o_runtime.constraint import Constraint
from h2o_runtime.errors import Cancelled, H2OError
from h2o_runtime.process import give_back_memory
from h2o_runtime.server.answer_format import AnswerFormat, Chunk
from h2o_runtime.server.inference import Failure, InferenceState, InferenceThread, Job, JobEvent, Progress
from h2o_runtime.server.metrics import Metrics
from h2o_runtime.server.problems import Problem, unavailable
from h2o_runtime.server.service_time import RequestWork, ServiceTime, whole_seconds
from h2o_runtime.server.slot import Slot, Ticket
from h2o_runtime.server.stream import DONE, KEEP_ALIVE, ClientGone, EventStream, event, unless_gone
from h2o_runtime.server.workers import Workers

log = logging.getLogger(__name__)

Result = TypeVar("Result")

Constrain = Callable[[Callable[[], bool]], Constraint | None]

_COMPILERS = 2  # threads that wait for grammars: a slow one does not hold up the next

_QUIET = 10.0  # seconds without an event after which a comment tells that the connection lives


class RequestHandler:
    """Takes requests and sees them through, whatever happens on the way. Lives in the event loop."""

    def __init__(
        self, inference: InferenceThread, metrics: Metrics, queue: int, queue_timeout: float | None
    ) -> None:
        self.inference = inference
        self.metrics = metrics
        self.service_time = ServiceTime()
        self.running: Job | None = None
        self.slot = Slot(queue, self.retry_after)
        self._queue_timeout = queue_timeout
        # One thread for all text: its memory stays one thread's, and no long prompt delays the event loop.
        self._text = Workers(1, "text")
        self._bodies = Workers(1, "body")
        self._grammars = Workers(_COMPILERS, "grammar")
        self._closed = False

    def retry_after(self) -> int:
        """Seconds until the running request is likely to be done, which makes a place in the queue."""
        return whole_seconds(self.service_time.remaining(self.running.work) if self.running else 0.0)

    def check(self) -> None:
        """Raise Problem when no request can be taken now."""
        self.check_inference()
        self.slot.check()

    async def in_body_thread(self, work: Callable[[], Result]) -> Result:
        """Read a body away from the event loop."""
        return await self._bodies.run(work)

    async def in_text_thread(self, work: Callable[[], Result]) -> Result:
        """Run work on text away from the event loop; errors of the runtime become Problems."""
        try:
            return await self._text.run(work)
        except H2OError as error:
            raise Problem.of(error) from error

    async def answer(
        self,
        http: HttpRequest,
        make: Callable[[], Request],
        shape: AnswerFormat,
        *,
        stream: bool,
        progress: bool,
        constrain: Constrain | None = None,
    ) -> Response:
        """Answer a validated request. Raises Problem, ClientGone.

        make: tokenizes it, in the text thread. constrain: compiles its grammar, in another one, until what it is
        given says that nobody waits for it any more.
        """
        try:
            job = await self._admitted(http, make, constrain, shape.name)
        except (Problem, ClientGone) as error:
            self.count_refused(error)
            raise
        if stream:
            return EventStream(self._events(job, shape, progress), job.cancel)
        return await self._plain(http, job, shape)

    @property
    def silence(self) -> float:
        """Seconds without a sign of life of whatever works on a request; 0 where nothing does."""
        return max(self.inference.silence, self._text.silence, self._grammars.silence)

    async def _admitted(
        self, http: HttpRequest, make: Callable[[], Request], constrain: Constrain | None, name: str
    ) -> Job:
        """The request as a running job, once it is prepared and its turn has come.

        Whatever takes its time meanwhile, the client may leave, the queue's time-out holds, and those that are
        ready go first.
        """
        self.check_inference()
        ticket, left = self.slot.enter(ready=False), threading.Event()
        preparing = asyncio.ensure_future(self._prepare(ticket, make, constrain, left))
        try:
            waited = await unless_gone(http, ticket.turn(self._queue_timeout))
            self.check_inference()
        except BaseException:
            left.set()
            ticket.leave()
            if preparing.done():
                _close(preparing.result())
            preparing.cancel()
            raise
        self.metrics.queue_wait.observe(waited)
        request = preparing.result()
        assert request is not None, "it was prepared, or it would have had no turn"
        return self._start(request, name, ticket, left)

    async def _prepare(
        self,
        ticket: Ticket,
        make: Callable[[], Request],
        constrain: Constrain | None,
        left: threading.Event,
    ) -> Request | None:
        """Make the request, and the ticket ready; or let the ticket say why there is none."""
        try:
            request = await self.in_text_thread(make)
            if constrain is not None:
                request = await self._constrained(request, constrain, left)
        except Exception as error:
            ticket.refuse(error)
            return None
        ticket.prepared()
        return request

    async def _constrained(self, request: Request, constrain: Constrain, left: threading.Event) -> Request:
        try:
            return await self._grammars.run(lambda: replace(request, constraint=constrain(left.is_set)))
        except Cancelled as error:
            raise ClientGone from error
        except H2OError as error:
            raise Problem.of(error) from error

    def count_refused(self, error: Problem | ClientGone) -> None:
        """A request that never reached the inference thread."""
        if isinstance(error, ClientGone):
            self.metrics.finished("left")
        else:
            self.metrics.finished("invalid" if error.status_code < 500 else "refused")

    def check_inference(self) -> None:
        """Raise Problem when there is no model to ask."""
        if self.inference.state is InferenceState.LOADING:
            raise unavailable("the model is being loaded: try again in a moment", 1, "loading")
        if self.inference.state is InferenceState.FAILED:
            raise Problem(500, "inference has failed: the server needs a restart", code="inference_failed")

    def give_back_memory(self) -> None:
        """When a large request is gone, unless others are at work, which do so themselves."""
        if not self.slot.busy and not self._closed:
            self._text.submit(give_back_memory)

    def close(self) -> None:
        self._closed = True
        for workers in (self._text, self._bodies, self._grammars):
            workers.close()

    def ended(self, timeout: float) -> bool:
        """Wait for the threads, each for `timeout` seconds → whether they came to their end."""
        return all(workers.ended(timeout) for workers in (self._text, self._bodies, self._grammars))

    def _start(self, request: Request, name: str, ticket: Ticket, left: threading.Event) -> Job:
        """From here on the slot is free when the inference thread says so, whoever listens."""
        room = self.inference.model.generator.context - len(request.prompt.ids) + 1
        limit = room if request.max_tokens is None else min(request.max_tokens, room)

        def done() -> None:
            self.running = None
            _close(request)
            ticket.leave()
            self._account(job)
            self.give_back_memory()

        job = Job(name, request, RequestWork(len(request.prompt.ids), limit), done, left)
        self.running = job
        self.inference.submit(job)
        return job

    async def _plain(self, http: HttpRequest, job: Job, shape: AnswerFormat) -> Response:
        try:
            completion = await unless_gone(http, self._last(job))
        finally:
            job.cancel()
        return JSONResponse(shape.whole(completion))

    async def _last(self, job: Job) -> Completion:
        """Wait for the end. Raises Problem."""
        while True:
            happened = await job.events.get()
            if isinstance(happened, (Completion, Failure)):
                return _completion(happened)

    async def _events(self, job: Job, shape: AnswerFormat, progress: bool) -> AsyncIterator[str]:
        told = time.monotonic()
        try:
            for chunk in shape.begin():
                yield event(chunk)
            while job.last is None or not job.events.empty():
                for chunk in _chunks(job, await _next(job.events), shape, progress):
                    yield event(chunk)
                    told = time.monotonic()
                if time.monotonic() - told >= _QUIET:
                    yield KEEP_ALIVE
                    told = time.monotonic()
            yield DONE
        except Problem as problem:  # the status was sent long ago
            yield event(problem.body())

    def _account(self, job: Job) -> None:
        """Count a job that the inference thread is done with, whether or not anybody still listens."""
        last = job.last
        if not isinstance(last, Completion):
            self.metrics.finished("failed")
            return
        self.metrics.completed(last)
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


def _close(request: Request | None) -> None:
    if request is not None and request.constraint is not None:
        request.constraint.close()


def _chunks(job: Job, happened: JobEvent | None, shape: AnswerFormat, progress: bool) -> Iterable[Chunk]:
    """What a client is told of an event, which may be nothing. Raises Problem when it ended the answer."""
    if isinstance(happened, Progress):
        return [shape.progress(happened, time.monotonic() - job.work.began)] if progress else ()
    if isinstance(happened, TextPiece):
        return shape.piece(happened)
    if isinstance(happened, (Completion, Failure)):
        return shape.end(_completion(happened))
    return ()


def _completion(last: Completion | Failure) -> Completion:
    """The answer. Raises Problem when there is none."""
    if isinstance(last, Failure):
        if isinstance(last.error, H2OError):
            raise Problem.of(last.error)
        raise Problem(500, "inference has failed: the server's log says why", code="inference_failed")
    if last.finish_reason == "cancelled":  # the client, if it still listens, did not ask for that
        raise unavailable("the server is shutting down", code="shutting_down")
    return last


async def _next(events: asyncio.Queue[JobEvent]) -> JobEvent | None:
    """The next event; None when there was none for a while."""
    try:
        return await asyncio.wait_for(events.get(), _QUIET)
    except asyncio.TimeoutError:
        return None
