"""Whose prompt is read next, in pieces: short ones do not wait for long ones, and none waits forever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.scheduled import CONFIG, PIECE, SLOTS, Task, finish, load, request

from h2o_runtime.caches import Contiguous
from h2o_runtime.text_model import TextModel
from h2o_server.scheduling.scheduler import SHARE, STEP_TOKENS, Scheduler

LONG = 9 * PIECE


@pytest.fixture(scope="module")
def together(tiny_bundle: Path) -> Iterator[TextModel]:
    with load(tiny_bundle, SLOTS, Contiguous()) as model:
        yield model


@pytest.fixture
def scheduler(together: TextModel) -> Scheduler:
    for generator in together.slots:
        generator.reset()
    return Scheduler(together, PIECE)


def prompt(seed: int, length: int, reuse: bool = False) -> Task:
    """Answered with one token: then a turn reads a piece."""
    return Task(request(seed, length, 1, CONFIG, reuse=reuse))


def turns(scheduler: Scheduler, task: Task) -> int:
    """The number of turns until its prompt is read."""
    for turn in range(1, 1000):
        scheduler.turn()
        if task.read:
            return turn
    raise AssertionError("it is never read")


def test_a_short_prompt_is_read_next_among_long_ones(scheduler: Scheduler) -> None:
    """It came last; a piece of a long one was being read at most."""
    for seed in range(SLOTS - 1):
        scheduler.start(prompt(seed, LONG))
    for _ in range(LONG // PIECE + 2):  # the second one is being read
        scheduler.turn()
    short = prompt(SLOTS, 7)
    scheduler.start(short)
    assert turns(scheduler, short) == 1


def test_equal_prompts_are_read_one_after_another(scheduler: Scheduler) -> None:
    alone, *tasks = (prompt(seed, LONG) for seed in range(SLOTS + 1))
    scheduler.start(alone)
    pieces = turns(scheduler, alone)
    for task in tasks:
        scheduler.start(task)
    assert [turns(scheduler, task) for task in tasks] == [pieces] * SLOTS


def test_of_long_prompts_the_nearest_to_its_end_is_read_first(scheduler: Scheduler) -> None:
    """Not the one that came first, nor the shortest one."""
    first, second = prompt(1, 6 * PIECE), prompt(2, LONG)
    scheduler.start(second)
    for _ in range(5):
        scheduler.turn()
    scheduler.start(first)
    turns(scheduler, second)
    assert not first.read


def test_a_long_prompt_is_read_however_many_short_ones_come(scheduler: Scheduler) -> None:
    """A piece of it in every few, and no short prompt waits for two of its pieces."""
    long = prompt(1, LONG)
    scheduler.start(long)
    pieces = 0
    while not long.read:
        short = prompt(2, 7)
        scheduler.start(short)
        assert turns(scheduler, short) <= 2
        pieces += 1
        assert pieces <= SHARE * LONG // PIECE + SHARE
    assert pieces > LONG // PIECE


def test_a_document_is_read_once_for_all_who_ask_about_it(scheduler: Scheduler) -> None:
    """What another slot holds is not left to be read: so such a prompt is short."""
    first, again, other = prompt(1, LONG, reuse=True), prompt(1, LONG, reuse=True), prompt(2, 3 * PIECE)
    for task in (first, again):
        scheduler.start(task)
    turns(scheduler, first)
    scheduler.start(other)
    assert turns(scheduler, again) == 1
    assert not other.read
    finish(scheduler)
    assert again.completion is not None
    assert again.completion.timings.cache_n == LONG


def test_a_client_that_leaves_frees_its_slot_at_once(scheduler: Scheduler) -> None:
    tasks = [prompt(seed, LONG) for seed in range(SLOTS)]
    for task in tasks:
        scheduler.start(task)
    scheduler.turn()
    tasks[2].left = True
    scheduler.turn()
    assert [task.over for task in tasks] == [False, False, True, False]
    finish(scheduler)


def test_answers_get_more_steps_the_larger_pieces_are(together: TextModel) -> None:
    """A piece waits for some steps, and no answer waits for a piece without a step before it."""
    scheduler = Scheduler(together, 3 * STEP_TOKENS)
    stream, long = Task(request(1, 7, 9, CONFIG, reuse=False)), prompt(2, LONG)
    scheduler.start(stream)
    turns(scheduler, stream)
    assert stream.slot is not None
    session = together.slots[stream.slot].session
    before = session.length
    scheduler.start(long)
    turns(scheduler, long)
    assert session.length - before == 3
    finish(scheduler)
