"""The events of one request's jobs, in the format for its client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable

from h2o_runtime.answers.completion import Completion, TextDelta
from h2o_server.answers.format import AnswerFormat, ChoiceFormat, Chunk
from h2o_server.http.problems import Problem, shutting_down
from h2o_server.http.stream import KEEP_ALIVE, ClientGone, event
from h2o_server.scheduling.inference import Failure, Job, JobEvent, Progress
from h2o_server.scheduling.jobs import Jobs

_QUIET = 10.0  # seconds without an event after which a comment keeps the connection alive


async def all_ended(jobs: Jobs) -> None:
    """Wait until all jobs have ended. Raises Problem as soon as a job has failed."""
    while any(job.last is None for job in jobs.all):
        _, happened = await jobs.events.get()
        if isinstance(happened, (Completion, Failure)):
            completion_of(happened)


async def choice_events(jobs: Jobs, shape: AnswerFormat, progress: bool) -> AsyncIterator[str]:
    """A stream's events of all choices, up to their ends, as they happen. Raises Problem."""
    choices = [shape.choice(job.index, job.request.prompt) for job in jobs.all]
    silent = set(range(1, len(choices)))  # those of which nothing was told
    for chunk in choices[0].begin():
        yield event(chunk)
    told = time.monotonic()
    while any(job.last is None for job in jobs.all) or not jobs.events.empty():
        try:
            job, happened = await asyncio.wait_for(jobs.events.get(), _QUIET)
        except asyncio.TimeoutError:  # the built-in one only from Python 3.11 on
            chunks: list[Chunk] = []
        else:
            chunks = list(choices[job.index].begin()) if job.index in silent else []
            silent.discard(job.index)
            chunks += _chunks(job, happened, shape, choices[job.index], progress)
        for chunk in chunks:
            yield event(chunk)
            told = time.monotonic()
        if time.monotonic() - told >= _QUIET:
            yield KEEP_ALIVE
            told = time.monotonic()


def _chunks(
    job: Job, happened: JobEvent, shape: AnswerFormat, choice: ChoiceFormat, progress: bool
) -> Iterable[Chunk]:
    """The chunks that an event gives the client, maybe none. Raises Problem if the event is a failure."""
    if isinstance(happened, Progress):
        return [shape.progress(happened, time.monotonic() - job.work.began)] if progress else ()
    if isinstance(happened, TextDelta):
        return choice.text_delta(happened)
    if isinstance(happened, (Completion, Failure)):
        return choice.end(completion_of(happened))
    return ()


def completion_of(last: Completion | Failure | None) -> Completion:
    """The answer. Raises Problem if there is none."""
    assert last is not None, "the job has ended"
    if isinstance(last, Failure) and not isinstance(last.error, ClientGone):
        raise Problem.of(last.error)
    if isinstance(last, Failure) or last.finish_reason == "cancelled":
        raise shutting_down()  # the client, if it still listens, did not cause that
    return last
