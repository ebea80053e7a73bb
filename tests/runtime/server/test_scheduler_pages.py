"""Answers at once whose caches share pages: nothing is lost where these run short."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.server.scheduled import (
    CONFIGS,
    CONTEXT,
    PIECE,
    SLOTS,
    Task,
    answer,
    finish,
    load,
    request,
    tokens_of,
)

from h2o_runtime import PrefillConfig
from h2o_runtime.caches import Paged
from h2o_runtime.server.scheduler import Scheduler


def test_slots_of_pages_share_one_pool(tiny_bundle: Path) -> None:
    """Four of the whole context fit, and beside them the rows of those that wait."""
    with load(tiny_bundle, SLOTS, Paged(), pool=1 << 24) as model:
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
    tiny_bundle: Path, config: PrefillConfig, pool: int
) -> None:
    """Pages for one context, and four runs of nearly as much each: three are promised what one has."""
    with load(tiny_bundle, SLOTS, Paged(), pool, slot_bytes=1) as model, load(tiny_bundle, 1, Paged()) as one:
        scheduler = Scheduler(model, PIECE)
        asked = [request(seed, 60 + 50 * seed, 140, config, reuse=pool > 0) for seed in range(SLOTS)]
        for _wave in range(2):
            tasks = [Task(wanted) for wanted in asked]
            for task in tasks:
                scheduler.start(task)
                scheduler.turn()
            assert watch_room(scheduler) > 0
            assert [tokens_of(task.completion) for task in tasks] == [answer(one, wanted) for wanted in asked]


def test_who_leaves_or_shares_a_prompt_where_pages_run_short(tiny_bundle: Path, tmp_path: Path) -> None:
    """Random mixes; what is filed meanwhile goes on too."""
    draw = random.Random(3)
    model = load(tiny_bundle, SLOTS, Paged(cache_dtype="int8"), 1 << 16, slot_bytes=1, folder=tmp_path)
    with model, load(tiny_bundle, 1, Paged(cache_dtype="int8")) as one:
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
