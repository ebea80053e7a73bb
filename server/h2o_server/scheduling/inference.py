"""The inference thread, the only one that runs the model. It takes jobs and reports to the event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from h2o_runtime.answers.completion import Completion, TextEvent
from h2o_runtime.answers.events import Prefilled
from h2o_runtime.answers.request import Request
from h2o_runtime.errors import ConfigError, H2OError
from h2o_runtime.execution.reading import Watch
from h2o_runtime.generator import Generator
from h2o_runtime.process import resident_bytes
from h2o_runtime.sessions.pool import SharedPrompt
from h2o_runtime.text_model import TextModel
from h2o_server.about.memory_view import MemorySnapshot
from h2o_server.scheduling.scheduler import Scheduler
from h2o_server.scheduling.service_time import RequestWork

log = logging.getLogger(__name__)

_PROGRESS_EVERY = 0.1  # seconds
KEEPING = 60.0  # seconds for writing conversations


class InferenceState(Enum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # an unexpected error: nothing more is computed


@dataclass(frozen=True)
class Progress:
    """`done` of `total` prompt tokens of work; the cache already held `cached` more."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True)
class Failure:
    """The job ended without a Completion."""

    error: Exception


JobEvent = Progress | TextEvent | Failure


class Job:
    """One choice of an answer in the inference thread. Its last event is a Completion or a Failure.

    Events are reported in the event loop; any thread may call `cancel`, any number of times.

    name    the answer's id
    index   the number of the choice
    slot    where it runs; None before
    shared  its prompt, if several jobs share it
    read    whether its prompt is in the cache
    last    its last event, once that is known; the inference thread may still store the session
    over    whether the inference thread is done with it
    done    called in the event loop when the inference thread is done with it
    """

    def __init__(
        self,
        name: str,
        index: int,
        request: Request,
        work: RequestWork,
        happened: Callable[[Job, JobEvent], None],
        cancelled: threading.Event,
    ) -> None:
        """happened: called in the event loop for each event. cancelled: set by `cancel`; other code waits for
        it too."""
        self.name, self.index = name, index
        self.request = request
        self.work = work
        self.last: Completion | Failure | None = None
        self.slot: int | None = None
        self.shared: SharedPrompt | None = None
        self.read = self.over = False
        self.done: Callable[[], None] = lambda: None
        self._happened = happened
        self._cancelled = cancelled

    def put(self, event: JobEvent) -> None:
        """Report an event; in the event loop. Nothing follows the last one."""
        if self.last is not None:
            return
        if isinstance(event, (Completion, Failure)):
            self.last = event
        self.read |= isinstance(event, Prefilled)
        self._happened(self, event)

    def cancel(self) -> None:
        self._cancelled.set()

    def end(self) -> None:
        """The inference thread is done with it; in the event loop."""
        self.over = True
        self.done()

    def cancelled(self) -> bool:
        return self._cancelled.is_set()


class InferenceThread:
    """Loads the model in its thread, then runs as many jobs at once as it has slots.

    Created and used in the event loop.
    """

    def __init__(self, load: Callable[[], TextModel], prompt_piece: int) -> None:
        """prompt_piece: the approximate number of prompt tokens read while other answers wait."""
        self._load = load
        self._prompt_piece = prompt_piece
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | SharedPrompt | None] = queue.SimpleQueue()
        self._model: TextModel | None = None
        # A daemon: an endless computation must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self.loaded: asyncio.Future[TextModel] = self._loop.create_future()
        self.state = InferenceState.LOADING
        self.snapshots: tuple[MemorySnapshot, ...] = ()  # of the last prefills, as many as there are slots
        self.cached_tokens: list[int] = []  # in each slot
        self.program_bytes = 0  # resident memory before the model was loaded
        self.set_aside = 0  # running jobs whose rows wait elsewhere, as memory is short
        self._closing = False
        self._ending = False  # whether no more jobs come
        self._sign: float | None = None  # when the running jobs last made progress

    @property
    def model(self) -> TextModel:
        """The loaded model; only in the state READY."""
        assert self._model is not None
        return self._model

    @property
    def ready(self) -> bool:
        return self.state is InferenceState.READY

    @property
    def silence(self) -> float:
        """Seconds since a running job last finished a tile, a step or a token; 0 without a job."""
        sign = self._sign
        return 0.0 if sign is None else time.monotonic() - sign

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Run the job. There must be a free slot for it."""
        self._jobs.put(job)
        if self.state is InferenceState.FAILED:
            self._refuse_all()

    def forget(self, prompt: SharedPrompt) -> None:
        """There are no more jobs with this prompt."""
        self._jobs.put(prompt)

    def stop(self, timeout: float) -> bool:
        """Let the thread end once it is idle → whether it did within `timeout` seconds."""
        self._jobs.put(None)
        self._thread.join(timeout)
        if self._closing:
            self._thread.join(KEEPING)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self.program_bytes = resident_bytes()
        try:
            model = self._load()
            model.prepare()
        except Exception as error:  # the code that awaits `loaded` handles it
            self._tell(self._not_loaded, error)
            return
        self.cached_tokens = [0] * len(model.slots)
        self._tell(self._ready, model)
        # If no other job runs, a prompt is read at once.
        scheduler = Scheduler(model, self._prompt_piece if len(model.slots) > 1 else None)
        try:
            while self._take(model, scheduler) and self._turn(scheduler):
                pass
        finally:
            self._closing = True
            model.close()

    def _take(self, model: TextModel, scheduler: Scheduler) -> bool:
        """Start new jobs, and wait for one if none runs → whether there is anything to do."""
        while not (self._ending and scheduler.idle):
            try:
                job = self._jobs.get(block=scheduler.idle)
            except queue.Empty:
                return True
            if job is None:
                self._ending = True
            elif isinstance(job, SharedPrompt):
                model.generator.pool.drop(job)
            else:
                self._start(job, scheduler)
        return False

    def _start(self, job: Job, scheduler: Scheduler) -> None:
        reporter = _Reporter(self, job)
        try:
            scheduler.start(reporter)
        except Exception as error:  # nothing has run, so the other jobs continue
            log.critical("%s failed before it ran", job.name, exc_info=True)
            reporter.ended(error)

    def _turn(self, scheduler: Scheduler) -> bool:
        """One turn of all jobs → whether another may follow."""
        try:
            scheduler.turn()
            self.set_aside = scheduler.set_aside
        except BaseException as error:
            log.critical("the inference thread failed; restart the server", exc_info=True)
            self._tell(self._failed)
            for task in scheduler.tasks:
                task.ended(RuntimeError(repr(error)))
            return False
        finally:
            self._sign = None if scheduler.idle else time.monotonic()
        return True

    def _tell(self, call: Callable[..., object], *args: object) -> None:
        """Call a function in the event loop, unless the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            log.debug("the event loop is closed")

    def _ready(self, model: TextModel) -> None:
        self._model = model
        self.state = InferenceState.READY
        if not self.loaded.done():
            self.loaded.set_result(model)

    def _not_loaded(self, error: Exception) -> None:
        self.state = InferenceState.FAILED
        if not self.loaded.done():
            self.loaded.set_exception(error)

    def _failed(self) -> None:
        self.state = InferenceState.FAILED
        self._refuse_all()

    def _refuse_all(self) -> None:
        """End the jobs that no thread will run: otherwise their clients would wait forever."""
        while not self._jobs.empty():
            job = self._jobs.get()
            if isinstance(job, Job):
                job.put(Failure(RuntimeError("inference has failed before")))
                job.end()


class _Reporter:
    """Forwards a job's events from the inference thread to the event loop, with progress at limited rate."""

    def __init__(self, inference: InferenceThread, job: Job) -> None:
        self._inference = inference
        self._job = job
        self._next = 0.0
        self._done = -1  # tokens last told
        self.request, self.shared = job.request, job.shared
        self.watch = Watch(self._progress, self._cancelled)

    def began(self, slot: int, generator: Generator) -> None:
        self._generator = generator
        self._job.slot = slot
        self._inference._sign = time.monotonic()

    def event(self, event: TextEvent) -> None:
        inference, job = self._inference, self._job
        if isinstance(event, Prefilled) and not job.index:
            taken = MemorySnapshot.take(job.name, job.request.prompt.ids, self._generator)
            inference.snapshots = (*inference.snapshots, taken)[-len(inference.cached_tokens) :]
        assert job.slot is not None, "it runs"
        inference.cached_tokens[job.slot] = self._generator.length
        # Before the client learns of the event: then the server is well.
        inference._sign = time.monotonic()
        inference._tell(self._took, event)

    def ended(self, error: Exception | None) -> None:
        job, tell = self._job, self._inference._tell
        if isinstance(error, ConfigError):  # the request's own fault, found only while sampling
            log.info("%s was refused: %s", job.name, error)
        elif isinstance(error, H2OError):
            log.error("%s failed: %s", job.name, error)
        if error is not None:
            tell(job.put, Failure(error))
        tell(job.end)

    def _cancelled(self) -> bool:
        self._inference._sign = time.monotonic()
        return self._job.cancelled()

    def _progress(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done != self._done and (now >= self._next or done == total):
            self._done = done
            self._next = now + _PROGRESS_EVERY
            self._inference._tell(self._took, Progress(done, total, self._generator.reused))

    def _took(self, event: JobEvent) -> None:
        if isinstance(event, Progress):
            self._job.work.progress(event.done, event.total)
        elif not isinstance(event, (Prefilled, Completion)):
            assert not isinstance(event, Failure)
            self._job.work.answered += len(event.tokens)
        self._job.put(event)
