"""A server stops at any moment: what is served is finished or told that it is not, and nothing is lost.

The request handler, the inference thread's turns and the scheduler run by hand, in one thread, without sockets,
and by a clock of their own: how busy the machine is changes nothing.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from tests.server.scheduled import CONFIGS, PIECE, SLOTS, answer, load, pages_in_use, request, tokens_of

from h2o_runtime.answers.completion import Completion
from h2o_runtime.answers.constraint import Constraint
from h2o_runtime.answers.request import Request
from h2o_runtime.caches import Cache, Contiguous, Paged
from h2o_runtime.errors import Cancelled
from h2o_runtime.text_model import TextModel
from h2o_server.about.metrics import Metrics
from h2o_server.answers.constraint import AnswerConstraint, Choices
from h2o_server.http.problems import RESTART, Problem
from h2o_server.http.stream import ClientGone
from h2o_server.request_handler import RequestHandler
from h2o_server.scheduling.inference import Failure, InferenceThread, Job
from h2o_server.scheduling.jobs import Constrain
from h2o_server.scheduling.scheduler import Scheduler
from h2o_server.serve import LAST_WORDS, drain

Result = TypeVar("Result")

MOST_TOKENS = 6
ANYTHING = AnswerConstraint("anything", "grammar")


class NotYet(Exception):  # noqa: N818 - a pause
    """The grammar is still being compiled."""


class Anything:
    """A constraint that allows every token, but no end."""

    def __init__(self, model: TextModel) -> None:
        self._mask = np.ones(model.generator.model.vocab_size, np.bool_)
        self._mask[list(model.end_ids)] = False

    def allowed(self) -> Any:
        return self._mask

    def accept(self, token: int) -> None: ...

    def forced(self) -> tuple[int, ...]:
        return ()

    def fitting(self, draft: Sequence[int]) -> int:
        return len(draft)

    def close(self) -> None: ...


class Loop(asyncio.SelectorEventLoop):
    """Its clock goes on only where the test waits."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def settle(self, rounds: int = 20) -> None:
        """Do what can be done in `rounds` milliseconds."""
        for _ in range(rounds):
            self.now += 0.001
            self.run_until_complete(asyncio.sleep(0))


class Now(queue.SimpleQueue):  # type: ignore[type-arg]
    """Jobs for a thread that never waits."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return super().get(block=False)


class Inline:
    """Work in the event loop instead of a thread; work that is not done is asked for again."""

    async def run(self, work: Callable[[], Result], unwanted: object = None) -> Result:
        while True:
            await asyncio.sleep(0)
            try:
                return work()
            except NotYet:
                continue


@dataclass
class Client:
    """Waits for its answer until it leaves; also the connection that the handler listens to."""

    choices: list[Request]
    grammar: bool
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    state: SimpleNamespace = field(default_factory=SimpleNamespace)
    answer: asyncio.Task[list[Completion]] | None = None
    late: bool = False  # came after the server began to stop
    served: bool = False  # had its turn before that

    async def receive(self) -> dict[str, str]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    @property
    def counted(self) -> bool:
        """Whether its jobs count it."""
        return getattr(self.state, "counted", False)

    @property
    def outcome(self) -> list[Completion] | BaseException:
        assert self.answer is not None
        assert self.answer.done(), "the client was not told"
        return self.answer.exception() or self.answer.result()


class ByHand:
    """A server whose inference thread's turns come when the test says so."""

    def __init__(self, model: TextModel, slots: int) -> None:
        self.model, self.loop = model, Loop()
        self.loop.run_until_complete(self._start(slots))
        self.scheduler = Scheduler(model, PIECE)
        for generator in model.slots:
            generator.reset()

    async def _start(self, slots: int) -> None:
        self.inference = InferenceThread(lambda: self.model, PIECE)
        self.inference._jobs = Now()
        self.inference.cached_tokens = [0] * slots
        self.inference._ready(self.model)
        self.metrics = Metrics()
        self.handler = RequestHandler(self.inference, self.metrics, queue=3, queue_timeout=None)
        self.handler.slots.count = slots
        self.handler._text.run = self.handler._grammars.run = Inline().run  # type: ignore[method-assign]
        self.time_up = asyncio.Event()

    def ask(self, client: Client, constrain: Constrain, name: str) -> None:
        asked = Choices(client.choices, ANYTHING if client.grammar else None)
        http: Any = client
        client.answer = self.loop.create_task(self.handler.complete(http, lambda: asked, constrain, name))

    def stop(self) -> asyncio.Task[None]:
        return self.loop.create_task(drain(self.handler, self.time_up.wait()))

    def turn(self) -> None:
        self.inference._take(self.model, self.scheduler)
        assert self.inference._turn(self.scheduler), "the log says why"

    def close(self) -> None:
        """Leave nothing behind that would outlive its event loop, whatever has failed."""
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.settle()
        self.handler.close()
        self.loop.close()


class Stopping(RuleBasedStateMachine):
    """Clients come and leave, and the server stops in the middle of it, with or without enough time."""

    model: TextModel
    one: TextModel
    known: dict[Any, list[int]]

    def __init__(self) -> None:
        super().__init__()
        self.server = ByHand(self.model, SLOTS)
        self.loop, self.handler = self.server.loop, self.server.handler
        self.clients: list[Client] = []
        self.stopping: asyncio.Task[None] | None = None
        self.compiling = False  # grammars take their time

    def constrain(self, wanted: AnswerConstraint, cancelled: Callable[[], bool]) -> Constraint:
        if cancelled():
            raise Cancelled("nobody wants it")
        if self.compiling:
            raise NotYet
        return Anything(self.model)

    @rule(
        seed=st.integers(0, 1),
        length=st.sampled_from([1, 33, 90, 200]),
        tokens=st.integers(1, MOST_TOKENS),
        policy=st.integers(0, len(CONFIGS) - 1),
        choices=st.sampled_from([1, 1, 3]),
        grammar=st.booleans(),
    )
    def arrive(self, seed: int, length: int, tokens: int, policy: int, choices: int, grammar: bool) -> None:
        wanted = request(seed, length, tokens, CONFIGS[policy], reuse=False)
        client = Client([replace(wanted, ignore_eos=not grammar)] * choices, grammar)
        client.late = self.stopping is not None
        self.server.ask(client, self.constrain, f"client {len(self.clients)}")
        self.clients.append(client)
        self.loop.settle(1)

    @rule(turns=st.integers(1, 6))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.loop.settle()
            self.server.turn()
        self.loop.settle()

    @rule(compiling=st.booleans())
    def compile(self, compiling: bool) -> None:
        self.compiling = compiling

    @precondition(lambda self: self.clients)
    @rule(one=st.integers(0, 1000))
    def leave(self, one: int) -> None:
        self.clients[one % len(self.clients)].gone.set()

    @precondition(lambda self: self.stopping is None)
    @rule()
    def stop(self) -> None:
        served = {jobs.name for jobs in self.handler.answers}
        for number, client in enumerate(self.clients):
            client.served = f"client {number}" in served
        self.stopping = self.server.stop()
        self.loop.settle(1)

    @precondition(lambda self: self.stopping is not None)
    @rule()
    def time_is_up(self) -> None:
        self.server.time_up.set()

    def teardown(self) -> None:
        try:
            self.end()
        finally:
            self.server.close()

    def end(self) -> None:
        """The server stops, if it has not yet."""
        if self.stopping is None:
            self.stop()
        if not self.server.time_up.is_set():
            self.compiling = False
        assert self.stopping is not None
        self.finish(self.stopping)
        for client in self.clients:
            self.check(client)
        counted = sum(one.value for one in next(iter(self.server.metrics.requests.collect())).samples[::2])
        assert counted == sum(client.counted for client in self.clients)
        slots = self.handler.slots
        assert (slots.busy, slots.waiting, self.handler.answers, self.handler.running) == (0, 0, [], [])
        # Nothing is left that would keep the thread.
        inference = self.server.inference
        inference._jobs.put(None)
        assert not inference._take(self.model, self.server.scheduler)
        assert pages_in_use(self.model) == 0

    def finish(self, stopping: asyncio.Task[None]) -> None:
        """Turn until the server has stopped and everybody was told."""
        for _ in range(2000):
            if stopping.done() and all(client.answer and client.answer.done() for client in self.clients):
                break
            self.turn(1)
        else:
            raise AssertionError("it does not stop")
        stopping.result()

    def check(self, client: Client) -> None:
        outcome, gone = client.outcome, client.gone.is_set()
        # The others are refused or have left: the middleware counts them by their status.
        assert client.counted or isinstance(outcome, (Problem, ClientGone))
        if isinstance(outcome, ClientGone):
            assert gone
        elif isinstance(outcome, Problem):
            assert outcome.status_code == 503
            assert outcome.code in ("shutting_down", "queue_full")
            assert not client.served or self.server.time_up.is_set()
        else:
            assert not isinstance(outcome, BaseException), outcome
            assert not client.late
            assert [tokens_of(one) for one in outcome] == [self.expected(one) for one in client.choices]
        if client.late:
            assert isinstance(outcome, Problem)
            assert outcome.code == "shutting_down"

    def expected(self, wanted: Request) -> list[int]:
        key = (wanted.prompt, wanted.prefill)
        if key not in self.known:
            longest = request(0, 1, MOST_TOKENS, CONFIGS[0])
            longest = Request(*key[:1], MOST_TOKENS, key[1], longest.sampling, ignore_eos=True)
            self.known[key] = answer(self.one, longest)
        return self.known[key][: wanted.max_tokens]


@pytest.fixture(scope="module")
def alone(tiny_bundle: Path) -> Iterator[TextModel]:
    with load(tiny_bundle, 1, Contiguous()) as model:
        yield model


@pytest.mark.parametrize("cache", [Contiguous(), Paged()], ids=["contiguous", "few-pages"])
def test_a_server_stops_at_any_moment(tiny_bundle: Path, alone: TextModel, cache: Cache) -> None:
    with load(tiny_bundle, SLOTS, cache, slot_bytes=1 if isinstance(cache, Paged) else None) as model:
        Stopping.model, Stopping.one, Stopping.known = model, alone, {}
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            Stopping, settings=settings(max_examples=15, stateful_step_count=20, deadline=None)
        )


@pytest.fixture
def server(alone: TextModel) -> Iterator[ByHand]:
    server = ByHand(alone, 1)
    yield server
    server.close()


def ask_for_three(server: ByHand) -> tuple[Client, Job]:
    """A client, and its first choice's job in the only slot; the other choices wait for that."""
    client = Client([request(0, 33, 2, CONFIGS[0], reuse=False)] * 3, grammar=False)
    server.ask(client, lambda wanted, cancelled: Anything(server.model), "three")
    server.loop.settle()
    job = server.inference._jobs.get()
    assert isinstance(job, Job)
    assert server.inference._jobs.empty()
    return client, job


def test_all_choices_are_told_when_the_inference_thread_does_not_come_back(server: ByHand) -> None:
    client, _ = ask_for_three(server)
    stopping = server.stop()
    server.time_up.set()
    server.loop.settle(round(1000 * LAST_WORDS) - 100)
    assert client.answer is not None
    assert not client.answer.done()
    server.loop.settle(200)
    stopping.result()
    assert isinstance(client.outcome, Problem)
    assert (client.outcome.status_code, client.outcome.code) == (503, "shutting_down")
    assert "shutting down" in str(client.outcome.detail)
    assert client.outcome.headers == {"Retry-After": str(RESTART)}
    (jobs,) = server.handler.answers
    assert all(isinstance(job.last, Failure) for job in jobs.all)
