"""Answers at once whose caches share pages: nothing is lost where these run short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.server.scheduled import (
    CONFIGS,
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
            assert finish(scheduler) > 0
            assert [tokens_of(task.completion) for task in tasks] == [answer(one, wanted) for wanted in asked]
