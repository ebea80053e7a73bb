"""Several answers at once: each is the one that it would be alone, and none waits for more than a piece.

The scheduler is driven by hand, without threads or sockets, so that a turn is a turn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from tests import bundles

from h2o_runtime import Generator, PrefillConfig, Sampling
from h2o_runtime.answers.events import Prefilled
from h2o_runtime.caches import Cache, Contiguous, Paged
from h2o_runtime.completion import Completion, Prompt, Request, TextModel
from h2o_runtime.config.load_options import LoadOptions
from h2o_runtime.errors import BackendError, BundleError
from h2o_runtime.execution.forward import Watch
from h2o_runtime.server.scheduler import Scheduler
from h2o_runtime.sessions.pool import SharedPrompt
from h2o_runtime.text import Tokenizer

EXAMPLE = Path(__file__).parents[3] / "examples" / "tiny-llama"
CONFIG = PrefillConfig(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=10, score="query")
CONFIGS = (
    CONFIG.altered(score_tile=8),
    CONFIG.altered(score="colsum"),
    CONFIG.altered(policy="full"),
    CONFIG.altered(policy="minference", vertical=30, slash=50),
)
CONTEXT = 400
PIECE = 32
SLOTS = 4


@dataclass(eq=False)
class Task:
    """A request whose client may leave. read: whether its prompt is in the cache."""

    request: Request
    left: bool = False
    error: Exception | None = None
    over: bool = False
    slot: int | None = None
    completion: Completion | None = None
    read: bool = False
    shared: SharedPrompt | None = None

    @property
    def watch(self) -> Watch:
        return Watch(cancelled=lambda: self.left)

    def began(self, slot: int, generator: Generator) -> None:
        assert self.slot is None
        self.slot = slot

    def event(self, event: object) -> None:
        assert not self.over
        if isinstance(event, Prefilled):
            self.read = True
        elif isinstance(event, Completion):
            self.completion = event

    def ended(self, error: Exception | None) -> None:
        assert not self.over
        self.over, self.error = True, error


def load(bundle: Path, slots: int, cache: Cache, pool: int = 0, **more: Any) -> TextModel:
    more |= {"context": CONTEXT, "threads": 1, "device": "cpu"}
    options = LoadOptions(cache=cache, slots=slots, pool_bytes=pool, **more)
    return TextModel(
        Generator.open(bundle, options), Tokenizer.load(EXAMPLE), BundleError("no template here")
    )


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Path:
    return tiny_bundle


@pytest.fixture(scope="module")
def alone(bundle: Path) -> Iterator[TextModel]:
    with load(bundle, 1, Contiguous()) as model:
        yield model


@pytest.fixture(scope="module")
def together(bundle: Path) -> Iterator[TextModel]:
    with load(bundle, SLOTS, Contiguous()) as model:
        yield model


def request(seed: int, length: int, tokens: int, config: PrefillConfig, **more: Any) -> Request:
    """Prompts of one seed begin alike. Greedy, unless `more` says otherwise."""
    more.setdefault("sampling", Sampling(temperature=0.0))
    ids = bundles.random_ids(CONTEXT, seed)[:length]
    return Request(Prompt(tuple(ids.tolist())), tokens, config, ignore_eos=True, **more)


def answer(model: TextModel, wanted: Request) -> list[int]:
    """As one generator gives it that knows of nothing else."""
    model.generator.reset()
    *_, completion = model.complete(wanted)
    assert isinstance(completion, Completion)
    return tokens_of(completion)


def tokens_of(completion: Completion | None) -> list[int]:
    assert completion is not None
    return [sampled.token for sampled in completion.tokens]


def finish(scheduler: Scheduler) -> None:
    for _ in range(2000):
        if scheduler.idle:
            return
        scheduler.turn()
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize(
    ("cache", "pool"),
    [(Contiguous(), 0), (Contiguous(cache_dtype="int8"), 1 << 22), (Paged(), 0), (Paged(), 1 << 22)],
    ids=["contiguous", "int8-pool", "paged", "paged-pool"],
)
def test_answers_are_those_of_isolated_runs(bundle: Path, cache: Cache, pool: int) -> None:
    """Random mixes of arrivals, lengths, policies, shared beginnings and clients that leave."""
    draw = random.Random(5)
    with load(bundle, SLOTS, cache, pool) as model, load(bundle, 1, cache) as one:
        scheduler = Scheduler(model, PIECE)
        known: dict[Any, list[int]] = {}
        tasks: list[Task] = []
        for _ in range(30):
            while sum(1 for _ in scheduler.tasks) < SLOTS and draw.random() < 0.7:
                shape = (draw.randrange(3), draw.choice([1, 20, 60, 150, 260]), draw.randrange(1, 12))
                policy = draw.randrange(len(CONFIGS))
                tasks.append(Task(request(*shape, CONFIGS[policy], reuse=draw.random() < 0.5)))
                scheduler.start(tasks[-1])
            for _ in range(draw.randrange(1, 6)):
                scheduler.turn()
            for task in tasks:
                task.left |= not task.over and draw.random() < 0.05
        finish(scheduler)
        assert len(tasks) > 25
        assert any(task.completion and task.completion.finish_reason == "cancelled" for task in tasks)
        for task in tasks:
            assert task.error is None
            wanted = task.request
            key = (wanted.prompt, wanted.prefill)
            if len(known.get(key, ())) < (wanted.max_tokens or 0):
                known[key] = answer(one, wanted)
            found = tokens_of(task.completion)
            assert found == known[key][: len(found)]
            assert task.completion is not None
            if task.completion.finish_reason != "cancelled":
                assert len(found) == wanted.max_tokens


def test_sampled_answers_follow_their_seeds_in_any_company(alone: TextModel, together: TextModel) -> None:
    wanted = [
        request(seed, 40, 10, CONFIGS[0], sampling=Sampling(temperature=1.5, seed=seed)) for seed in range(4)
    ]
    scheduler = Scheduler(together, PIECE)
    tasks = [Task(one) for one in wanted]
    for task in tasks:
        scheduler.start(task)
        scheduler.turn()
    finish(scheduler)
    assert [tokens_of(task.completion) for task in tasks] == [answer(alone, one) for one in wanted]


@pytest.mark.parametrize("config", CONFIGS, ids=["query", "colsum", "full", "minference"])
def test_a_stream_waits_for_no_more_than_a_piece(together: TextModel, config: PrefillConfig) -> None:
    """A token comes with every turn, and a turn reads a piece of one prompt, however many wait to be read."""
    scheduler = Scheduler(together, PIECE)
    stream = Task(request(1, 20, 40, config, reuse=False))
    scheduler.start(stream)
    scheduler.turn()
    assert stream.read
    long = [Task(request(seed, 320, 1, config, reuse=False)) for seed in (2, 3)]
    rows: list[int] = []
    prefill = together.generator.loaded.forward.prefill

    def counted(run: Any) -> None:
        rows.append(len(run.tokens))
        prefill(run)

    together.generator.loaded.forward.prefill = counted  # type: ignore[method-assign]
    try:
        for task in long:
            scheduler.start(task)
        assert stream.slot is not None
        session = together.slots[stream.slot].session
        while not scheduler.idle:
            pieces, generated = len(rows), session.length
            scheduler.turn()
            assert len(rows) - pieces <= 1
            assert stream.over or session.length > generated
    finally:
        together.generator.loaded.forward.prefill = prefill  # type: ignore[method-assign]
    most = 64 if config.algorithm.name == "full" else PIECE + 10  # the last has the dense tail
    assert max(rows) <= most
    assert sum(rows) == 640
    assert all(task.completion for task in (stream, *long))


def test_prompts_are_read_by_turns(together: TextModel) -> None:
    scheduler = Scheduler(together, PIECE)
    long = Task(request(2, 320, 1, CONFIGS[0], reuse=False))
    scheduler.start(long)
    scheduler.turn()
    short = Task(request(3, 20, 1, CONFIGS[0], reuse=False))
    scheduler.start(short)
    scheduler.turn()
    scheduler.turn()
    assert short.over
    assert not long.read
    finish(scheduler)
    assert long.completion is not None


def test_a_failure_in_one_slot_is_that_ones(together: TextModel, alone: TextModel) -> None:
    """And a prompt that is refused keeps no slot."""
    scheduler = Scheduler(together, PIECE)
    wanted = request(1, 50, 8, CONFIGS[0])
    good = Task(wanted)
    refused = Task(Request(Prompt((1, 10**6)), 4))
    broken = Task(request(2, 50, 8, CONFIGS[0], reuse=False))
    for task in (good, refused, broken):
        scheduler.start(task)
    scheduler.turn()
    scheduler.turn()
    assert refused.error is not None
    forward = together.generator.loaded.forward
    prefill = forward.prefill

    def fails(run: Any) -> None:
        raise BackendError("out of order")

    forward.prefill = fails  # type: ignore[method-assign]
    scheduler.turn()
    forward.prefill = prefill  # type: ignore[method-assign]
    assert isinstance(broken.error, BackendError)
    finish(scheduler)
    assert tokens_of(good.completion) == answer(alone, wanted)
    again = [Task(request(seed, 30, 3, CONFIGS[0])) for seed in range(SLOTS)]
    for task in again:
        scheduler.start(task)
    finish(scheduler)
    assert {task.slot for task in again} == set(range(SLOTS))


def test_a_conversation_goes_back_to_its_slot(together: TextModel) -> None:
    scheduler = Scheduler(together, PIECE)
    for one in together.slots:
        one.reset()
    first = [Task(request(seed, 100, 4, CONFIGS[0])) for seed in (1, 2)]
    for task in first:
        scheduler.start(task)
    finish(scheduler)
    assert first[0].slot != first[1].slot
    for task in first:
        more = (*task.request.prompt.ids, *tokens_of(task.completion)[:-1], 5, 6)
        turn = Task(Request(Prompt(more), 4, CONFIGS[0]))
        scheduler.start(turn)
        finish(scheduler)
        assert turn.slot == task.slot
        assert turn.completion is not None
        assert turn.completion.timings.cache_n == len(more) - 2


def test_a_slot_that_is_asked_for_is_taken_if_it_is_free(together: TextModel) -> None:
    scheduler = Scheduler(together, PIECE)
    tasks = [Task(request(seed, 30, 3, CONFIGS[0], slot=2)) for seed in range(2)]
    for task in tasks:
        scheduler.start(task)
    assert tasks[0].slot == 2
    assert tasks[1].slot != 2
    finish(scheduler)


@pytest.mark.parametrize("cache", [Contiguous(cache_dtype="int8"), Paged()], ids=["int8", "paged"])
@pytest.mark.parametrize("config", CONFIGS, ids=["query", "colsum", "full", "minference"])
def test_a_beginning_that_another_slot_has_read_is_not_read_again(
    bundle: Path, cache: Cache, config: PrefillConfig
) -> None:
    """While that one goes on with its answer, which it could not go back from."""
    with load(bundle, SLOTS, cache) as model, load(bundle, 1, cache) as one:
        scheduler = Scheduler(model, PIECE)
        first = Task(request(1, 200, 30, config))
        scheduler.start(first)
        while not first.read:
            scheduler.turn()
        ids = (*first.request.prompt.ids[:150], *range(10, 70))
        others = [
            Task(Request(Prompt((*ids, 5 + end)), 6, config, Sampling(temperature=0.0), ignore_eos=True))
            for end in range(2)
        ]
        for task in others:
            scheduler.start(task)
            while not task.read:
                scheduler.turn()
        finish(scheduler)
        for task in (first, *others):
            assert tokens_of(task.completion) == answer(one, task.request)
        for task, least in zip(others, (128, 192), strict=True):
            assert task.completion is not None
            assert least <= task.completion.timings.cache_n < 211


@pytest.mark.parametrize(
    "cache", [Contiguous(), Contiguous(cache_dtype="int8"), Paged()], ids=["contiguous", "int8", "paged"]
)
@pytest.mark.parametrize("config", CONFIGS, ids=["query", "colsum", "full", "minference"])
def test_answers_to_one_prompt_read_it_once(bundle: Path, cache: Cache, config: PrefillConfig) -> None:
    """Also those that come when the first have gone on, and whatever the prompt's own request may keep."""
    with load(bundle, 2, cache) as model, load(bundle, 1, cache) as one:
        pool, shared = model.generator.pool, SharedPrompt()
        scheduler = Scheduler(model, PIECE)
        sampled = [Sampling(temperature=1.0, seed=seed) for seed in range(4)]
        asked = [request(1, 203, 9, config, sampling=sampling, reuse=False) for sampling in sampled]
        tasks = [Task(wanted, shared=shared) for wanted in asked]
        scheduler.start(tasks[0])
        while not tasks[0].read:
            scheduler.turn()
        scheduler.start(tasks[1])
        finish(scheduler)
        for task in tasks[2:]:
            scheduler.start(task)
        finish(scheduler)
        pool.drop(shared)
        assert [tokens_of(task.completion) for task in tasks] == [answer(one, wanted) for wanted in asked]
        cached = [task.completion.timings.cache_n for task in tasks if task.completion]
        assert cached == [0, 203, 203, 203]
        if isinstance(cache, Paged):
            for generator in model.slots:
                generator.reset()
            assert model.generator.session.store.report()["pages_in_use"] == 0


def test_slots_of_pages_share_one_pool(bundle: Path) -> None:
    """Four of the whole context fit, and beside them the rows of those that wait."""
    with load(bundle, SLOTS, Paged(), pool=1 << 24) as model:
        stores: list[Any] = [one.session.store for one in model.slots]
        assert len({id(store.pool) for store in stores}) == 1
        scheduler = Scheduler(model, PIECE)
        for wave in range(3):
            tasks = [Task(request(10 * wave + seed, 390, 11, CONFIGS[2])) for seed in range(SLOTS)]
            for task in tasks:
                scheduler.start(task)
            finish(scheduler)
            assert all(task.error is None and task.completion for task in tasks)
        assert len(model.generator.pool) > 0
        # A prompt that another slot has read is in the pool, and goes on there with the same pages.
        again = Task(request(11, 390, 11, CONFIGS[2]))
        scheduler.start(again)
        finish(scheduler)
        assert again.completion is not None
        assert again.completion.timings.cache_n >= 389
        held = np.unique(np.concatenate([store.pages.table[: store.pages.used] for store in stores]))
        assert (stores[0].pool.counts[held] > 0).all()


def watch_room(scheduler: Scheduler) -> int:
    """Run to the end → most runs that were set aside at a time. Whoever came first is never among them."""
    most = 0
    for _ in range(5000):
        if scheduler.idle:
            return most
        first = scheduler._running[0]
        scheduler.turn()
        most = max(most, scheduler.set_aside)
        assert not first.generator.session.store.moved
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("config", CONFIGS, ids=["query", "colsum", "full", "minference"])
@pytest.mark.parametrize("pool", [0, 1 << 15], ids=["alone", "pool"])
def test_where_pages_run_short_runs_wait_and_lose_nothing(
    bundle: Path, config: PrefillConfig, pool: int
) -> None:
    """Pages for one context, and four runs of nearly as much each: three are promised what one has."""
    with load(bundle, SLOTS, Paged(), pool, slot_bytes=1) as model, load(bundle, 1, Paged()) as one:
        scheduler = Scheduler(model, PIECE)
        asked = [request(seed, 60 + 50 * seed, 140, config, reuse=pool > 0) for seed in range(SLOTS)]
        for _wave in range(2):
            tasks = [Task(wanted) for wanted in asked]
            for task in tasks:
                scheduler.start(task)
                scheduler.turn()
            assert watch_room(scheduler) > 0
            assert [tokens_of(task.completion) for task in tasks] == [answer(one, wanted) for wanted in asked]


def test_who_leaves_or_shares_a_prompt_where_pages_run_short(bundle: Path, tmp_path: Path) -> None:
    """Random mixes; what is filed meanwhile goes on too."""
    draw = random.Random(3)
    model = load(bundle, SLOTS, Paged(cache_dtype="int8"), 1 << 16, slot_bytes=1, folder=tmp_path)
    with model, load(bundle, 1, Paged(cache_dtype="int8")) as one:
        scheduler = Scheduler(model, PIECE)
        tasks: list[Task] = []
        for _ in range(25):
            while sum(1 for _ in scheduler.tasks) < SLOTS and draw.random() < 0.7:
                shape = (draw.randrange(3), draw.choice([20, 150, 260, 390]), draw.randrange(1, 60))
                config = CONFIGS[draw.randrange(len(CONFIGS))]
                tasks.append(Task(request(*shape, config, reuse=draw.random() < 0.5)))
                scheduler.start(tasks[-1])
            for _ in range(draw.randrange(1, 12)):
                scheduler.turn()
            for task in tasks:
                task.left |= not task.over and draw.random() < 0.05
        watch_room(scheduler)
        for task in tasks:
            assert task.error is None
            found, wanted = tokens_of(task.completion), task.request
            assert found == answer(one, wanted)[: len(found)]
            assert task.completion is not None
            assert task.left or len(found) == min(
                wanted.max_tokens or 0, CONTEXT + 1 - len(wanted.prompt.ids)
            )


class Clients(RuleBasedStateMachine):
    """Clients come and leave at any turn, the model is asked for all that it can do, and all are answered."""

    model: TextModel
    one: TextModel
    known: dict[Any, list[int]]

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(self.model, PIECE)
        self.tasks: list[Task] = []
        for generator in self.model.slots:
            generator.reset()

    @precondition(lambda self: sum(1 for _ in self.scheduler.tasks) < SLOTS)
    @rule(
        seed=st.integers(0, 1),
        length=st.sampled_from([1, 33, 90, 200]),
        tokens=st.integers(0, 6),
        policy=st.integers(0, len(CONFIGS) - 1),
    )
    def arrive(self, seed: int, length: int, tokens: int, policy: int) -> None:
        self.tasks.append(Task(request(seed, length, tokens, CONFIGS[policy], reuse=False)))
        self.scheduler.start(self.tasks[-1])

    @rule(turns=st.integers(1, 8))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.scheduler.turn()

    @precondition(lambda self: self.tasks)
    @rule(one=st.integers(0, 1000))
    def leave(self, one: int) -> None:
        self.tasks[one % len(self.tasks)].left = True

    def teardown(self) -> None:
        finish(self.scheduler)
        for task in self.tasks:
            assert task.error is None
            assert task.completion is not None
            key = (task.request.prompt, task.request.prefill)
            if key not in self.known:
                longest = Request(*key[:1], 6, key[1], Sampling(temperature=0.0), ignore_eos=True)
                self.known[key] = answer(self.one, longest)
            found = tokens_of(task.completion)
            assert found == self.known[key][: len(found)]
            whole = task.completion.finish_reason == "length"
            assert whole == (len(found) == task.request.max_tokens and task.read) or task.left


def test_clients_come_and_leave(together: TextModel, alone: TextModel) -> None:
    Clients.model, Clients.one, Clients.known = together, alone, {}
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Clients, settings=settings(max_examples=20, stateful_step_count=25, deadline=None)
    )
