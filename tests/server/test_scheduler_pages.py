"""Answers at once whose caches share pages: nothing is lost where these run short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.server.scheduled import (
    CONFIGS,
    PIECE,
    SLOTS,
    Task,
    answer,
    finish,
    load,
    pages_in_use,
    request,
    tokens_of,
)

from h2o_runtime.caches import Paged
from h2o_server.scheduling.scheduler import Scheduler


def test_slots_of_pages_share_one_pool(tiny_bundle: Path) -> None:
    """Four of the whole context fit, and beside them the rows of those that wait."""
    with load(tiny_bundle, SLOTS, Paged(), pool=1 << 24) as model:
        stores: list[Any] = [one.session.store for one in model.slots]
        assert len({id(store.pool) for store in stores}) == 1
        scheduler = Scheduler(model, PIECE)
        for wave in range(2):
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


def test_where_pages_run_short_runs_wait_and_lose_nothing(tiny_bundle: Path) -> None:
    """Pages for one context, and four runs of nearly as much each: three are promised what one has."""
    asked = [request(seed, 60 + 50 * seed, 140, CONFIGS[0]) for seed in range(SLOTS)]
    with load(tiny_bundle, 1, Paged()) as one:
        expected = [answer(one, wanted) for wanted in asked]
    with load(tiny_bundle, SLOTS, Paged(), 1 << 15, slot_bytes=1) as model:
        scheduler = Scheduler(model, PIECE)
        for _wave in range(2):
            tasks = [Task(wanted) for wanted in asked]
            for task in tasks:
                scheduler.start(task)
                scheduler.turn()
            assert finish(scheduler) > 0
            assert [tokens_of(task.completion) for task in tasks] == expected


@pytest.mark.parametrize("reuse", [False, True])
def test_what_a_slot_holds_may_wait_while_its_pages_are_counted(tiny_bundle: Path, reuse: bool) -> None:
    """A conversation that waits in the pool keeps its pages: the prompt that takes its slot needs others."""
    with load(tiny_bundle, 2, Paged(), pool=1 << 21, slot_bytes=1) as model:  # 47 pages of 16 rows
        scheduler = Scheduler(model, PIECE)
        scheduler.start(Task(request(1, 316, 5, CONFIGS[2], slot=0)))
        finish(scheduler)  # 20 pages
        longest = Task(request(2, 390, 11, CONFIGS[2], slot=1))
        scheduler.start(longest)  # 25 pages
        while not longest.read:
            scheduler.turn()
        another = Task(request(3, 330, 3, CONFIGS[2], slot=0, reuse=reuse))
        scheduler.start(another)  # 21 pages, and the two that are free are not enough
        finish(scheduler)
        assert longest.completion
        assert another.completion
        assert pages_in_use(model) == 0
