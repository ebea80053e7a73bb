"""Several answers at once: each is the one that it would be alone, and none waits for more than a piece.

The scheduler is driven by hand, without threads or sockets, so that a turn is a turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.scheduled import CONFIGS, PIECE, SLOTS, Task, answer, finish, load, request, tokens_of

from h2o_runtime import Sampling
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.caches import Cache, Contiguous, Paged
from h2o_runtime.errors import BackendError
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.sessions.pool import SharedPrompt
from h2o_runtime.text_model import TextModel
from h2o_server.scheduling.scheduler import Scheduler


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


@pytest.mark.parametrize("config", [CONFIGS[0], *CONFIGS[2:]], ids=["query", "full", "minference"])
def test_a_stream_waits_for_no_more_than_a_piece(together: TextModel, config: PrefillPolicy[Any]) -> None:
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
    most = 64 if config.name == "full" else PIECE + 10  # the last has the dense tail
    assert max(rows) <= most
    assert sum(rows) == 640
    assert all(task.completion for task in (stream, *long))


def test_a_failure_in_one_slot_is_that_ones(together: TextModel, alone: TextModel) -> None:
    """And a prompt that is refused keeps no slot."""
    scheduler = Scheduler(together, PIECE)
    wanted = request(1, 50, 8, CONFIGS[0])
    good = Task(wanted)
    refused = Task(Request(Prompt((1, 10**6)), 4))
    broken = Task(request(2, 50, 8, CONFIGS[0], reuse=False))
    for task in (good, refused, broken):
        scheduler.start(task)
    while not good.read:
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


@pytest.mark.parametrize(
    ("cache", "config"), [(Contiguous(rows="int8"), CONFIGS[0]), (Paged(), CONFIGS[3])], ids=str
)
def test_a_beginning_that_another_slot_has_read_is_not_read_again(
    bundle: Path, cache: Cache, config: PrefillPolicy[Any]
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


@pytest.mark.parametrize(("cache", "config"), [(Paged(), CONFIGS[0]), (Contiguous(), CONFIGS[1])])
def test_answers_to_one_prompt_read_it_once(bundle: Path, cache: Cache, config: PrefillPolicy[Any]) -> None:
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
