"""What the rule `query` makes of its settings: tiles follow the chunk, and a memory can grow with the past."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import bundles
from tests.bundles import random_ids

from h2o_runtime import Generator, PrefillConfig
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.prefill.h2o.scores import query
from h2o_runtime.server.memory_view import MemorySnapshot

GROWING = PrefillConfig(chunk_size=32, batch_size=64, local=4, heavy="auto", score_tile=12, dense_tail=0)


@pytest.fixture(scope="module")
def generator(shared_folder: Path) -> Iterator[Generator]:
    with Generator.load(bundles.named(shared_folder, "llama-g2-d64-llama3")[1], context=256) as loaded:
        yield loaded


@pytest.mark.parametrize(
    ("chunk", "most", "tile", "count"),
    [
        (1024, 128, 128, 8),
        (1000, 128, 125, 8),
        (1021, 128, 128, 8),
        (48, 128, 48, 1),
        (96, 40, 32, 3),
        (9, 1, 1, 9),
    ],
)
def test_tiles_follow_the_chunk(chunk: int, most: int, tile: int, count: int) -> None:
    config = PrefillConfig(chunk_size=chunk, local=1, heavy=2, score_tile=most)
    assert (config.algorithm.tile, config.algorithm.tiles_of_chunk) == (tile, count)
    rows = [len(one) for one in config.algorithm.tiles(0, 2 * chunk)]
    assert (len(rows), sum(rows), max(rows)) == (2 * count, 2 * chunk, tile)
    assert config.algorithm.tiles_before(chunk + 1) == count + 1


@pytest.mark.parametrize(
    ("past", "memory", "candidates"),
    [
        (1, 512, 2048),
        (2048, 512, 2048),
        (2052, 513, 2052),
        (3072, 768, 3072),
        (4096, 960, 3840),
        (1 << 20, 960, 3840),
    ],
)
def test_a_memory_that_grows_is_a_quarter_of_the_past(past: int, memory: int, candidates: int) -> None:
    config = PrefillConfig(heavy="auto")
    assert (config.algorithm.memory_at(past), config.algorithm.candidates_at(past)) == (memory, candidates)
    assert (config.algorithm.memory, config.algorithm.candidates) == (960, 3840)
    assert config.algorithm.counts(past)["memory_size"] == (
        config.algorithm.memory_at((past - 1) // 1024 * 1024) if past > 1024 else 0
    )


@pytest.mark.parametrize(
    ("settings", "field", "says"),
    [
        ({"score": "colsum"}, "heavy", "auto, but under score=colsum the memory is of one size"),
        ({"sink": 449}, "sink", "must not exceed `heavy`"),
        ({"local": 1024}, "heavy", "must be below `chunk_size`"),
    ],
)
def test_what_does_not_go_with_it(settings: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        PrefillConfig(heavy="auto", **settings)
    assert caught.value.field == field
    with pytest.raises(ConfigError, match="must be an integer or auto, but is 'most'"):
        PrefillConfig(heavy="most")


def test_sets_are_as_large_as_the_past_asks_for(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "AUTO_LEAST", 10)
    ids = random_ids(150)
    generator.reset()
    generator.prefill(ids, GROWING)
    report = generator.report()
    sizes = (report.boundaries >= 0).sum(axis=-1)
    ends = [rows.start // 32 * 32 for rows in report.seen_by]
    assert [(one.min(), one.max()) for one in sizes] == [
        (GROWING.algorithm.memory_at(end),) * 2 for end in ends
    ]
    assert sorted({*map(GROWING.algorithm.memory_at, ends)}) == [10, 16, 24, 30]
    for sets, end in zip(report.boundaries, ends, strict=True):
        kept = sets[..., : GROWING.algorithm.memory_at(end)]
        assert (np.diff(kept) > 0).all()
        assert (kept[..., -4:] == np.arange(end - 4, end)).all()
    assert report.last.shape[-1] == 30
    seen = MemorySnapshot.take("answer", tuple(ids.tolist()), generator)
    layers, heads = report.last.shape[:2]
    assert (len(seen.sets), seen.seen_by) == (len(ends), report.seen_by)
    assert [sum(seen.counts(i, layers - 1)) for i in range(len(ends))] == [
        heads * GROWING.algorithm.memory_at(end) for end in ends
    ]
