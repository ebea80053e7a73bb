"""What the rule `query` makes of its settings: tiles follow the chunk, and a memory can grow with the past."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import bundles
from tests.bundles import random_ids

from h2o_runtime import Generator
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.prefill import Full, Query
from h2o_runtime.schedule import Span
from h2o_server.about.memory_view import MemorySnapshot

GROWING = Query(chunk_size=32, batch_size=64, local=4, heavy=6, grow=0, tile=12, dense_tail=0)


@pytest.fixture(scope="module")
def generator(shared_folder: Path) -> Iterator[Generator]:
    with Generator.load(bundles.named(shared_folder, "llama-g2-d64-llama3")[1], context=256) as loaded:
        yield loaded


@pytest.mark.parametrize(
    ("chunk", "most", "tile", "count"),
    [(1024, 128, 128, 8), (1021, 128, 128, 8), (48, 128, 48, 1), (96, 40, 32, 3), (9, 1, 1, 9)],
)
def test_tiles_follow_the_chunk(chunk: int, most: int, tile: int, count: int) -> None:
    policy = Query(chunk_size=chunk, local=1, heavy=2, tile=most)
    assert (policy.tile_rows, policy.tiles_of_chunk) == (tile, count)
    rows = [len(one) for one in policy.tiles(0, 2 * chunk)]
    assert (len(rows), sum(rows), max(rows)) == (2 * count, 2 * chunk, tile)
    assert policy.tiles_before(chunk + 1) == count + 1


@pytest.mark.parametrize(
    ("past", "memory", "candidates"),
    [
        (1, 512, 4096),
        (2052, 513, 4104),
        (2055, 513, 4104),  # a quarter is rounded down
        (3072, 768, 6144),
        (8192, 1920, 15360),
    ],
)
def test_a_memory_that_grows_is_a_quarter_of_the_past(past: int, memory: int, candidates: int) -> None:
    policy = Query(grow=0)
    assert (policy.memory_at(past), policy.candidates_at(past)) == (memory, candidates)
    assert (policy.memory, policy.most_candidates) == (1920, 15360)
    assert policy.counts(past)["memory_size"] == (
        policy.memory_at((past - 1) // 1024 * 1024) if past > 1024 else 0
    )


@pytest.mark.parametrize(
    ("settings", "past", "memory", "candidates"),
    [
        ({}, 4095, 512, 2560),
        ({}, 4096, 1024, 8192),
        ({}, 8191, 1280, 10240),
        ({}, 8192, 1920, 15360),
        ({}, 1 << 20, 1920, 15360),
        ({"grow": 1024, "heavy": 192}, 2000, 500, 4000),
        ({"grow": 0, "heavy": 958}, 4000, 1022, 8176),  # more than it would grow to
        ({"grow": "never"}, 1 << 20, 512, 2560),
    ],
)
def test_a_memory_grows_from_some_past_on(
    settings: dict[str, Any], past: int, memory: int, candidates: int
) -> None:
    policy = Query(**settings)
    assert (policy.memory_at(past), policy.candidates_at(past)) == (memory, candidates)


@pytest.mark.parametrize(
    ("settings", "strides"),
    [
        ({}, [1, 1, 8, 8]),
        ({"chunk_size": 1000}, [1, 1, 7, 7]),  # tiles of 63 rows
        ({"queries": 5, "late_queries": 1}, [12, 12, 64, 64]),
        ({"tile": 8}, [1, 1, 1, 1]),
    ],
)
def test_more_queries_vote_in_the_first_half_of_the_layers(
    settings: dict[str, Any], strides: list[int]
) -> None:
    policy = Query(**settings)
    assert [policy.stride_in(layer, 4) for layer in range(4)] == strides
    assert [policy.stride_in(layer, 3) for layer in range(3)] == strides[:3]


def test_candidates_follow_the_position_alone() -> None:
    """A quarter of these pasts is less than the 764 keys of every memory: none has grown."""
    policy = Query(grow=1024, heavy=700)
    assert policy.memory_at(1024) == policy.memory_at(1023) == 764
    assert [policy.candidates_at(past) for past in (1023, 1024)] == [2560, 8 * 764]


def test_another_rule_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="rule 2 is not known, only rule 1: leave out rule, or update h2o-edge"
    ):
        Query(rule=2)


@pytest.mark.parametrize(
    ("settings", "past", "candidates"),
    [
        ({}, 3072, 0),
        ({}, 22528, 0),
        ({}, 23552, 15360),
        ({"candidates": 2048}, 3071, 0),
        ({"candidates": 2048}, 3072, 2048),
        ({"grow": "never"}, 1 << 20, 2560),
    ],
)
def test_a_past_that_is_half_as_long_again_is_narrowed(
    settings: dict[str, Any], past: int, candidates: int
) -> None:
    assert Query(**settings).narrowed_to(past) == candidates


def test_what_a_memory_is_said_to_be() -> None:
    assert Query().summary() == "Chunks of 1,024, memory 512 to 1,920"
    assert Query(grow="never").summary() == "Chunks of 1,024, memory 512"
    dense = Query(dense_start=1100)
    assert dense.summary() == "Chunks of 1,024, memory 512 to 1,920, the first 2,048 tokens exact"
    assert [dense.counts(n)["memory_size"] for n in (1000, 2000, 3000, 6000)] == [0, 1024, 512, 1280]
    assert dense.counts(0) == {"chunks": 0, "memory_size": 0}  # the cache holds the whole prompt
    assert [dense.budget(n)["heavy"] for n in (1000, 6000)] == [448, 1216]
    with pytest.raises(ConfigError, match="grow must be an integer or never, but is 'seldom'"):
        Query(grow="seldom")


@pytest.mark.parametrize(("grow", "together"), [(48, [1, 1, 1, 1, 1, 1, 1, 5]), ("never", [12])])
def test_chunks_that_keep_as_many_choose_together(grow: Any, together: list[int]) -> None:
    """Room is that of a tile's own size, so that sets of the smaller ones lie in one array too."""
    policy = Query(chunk_size=32, batch_size=512, local=4, heavy=4, tile=16, grow=grow)
    groups = policy.groups(0, 0, Span(0, 416), 2)
    assert [len(one.chunks) // 32 for one in groups] == together


@pytest.mark.parametrize(("start", "first"), [(1, 32), (33, 64), (96, 96)])
def test_a_dense_start_sees_all_and_later_tiles_choose_as_without(
    generator: Generator, start: int, first: int
) -> None:
    """Queries and keys of layer 0 do not depend on attention, so neither do its sets."""
    ids, dense = random_ids(150), replace(GROWING, dense_start=start)
    assert dense.first_sparse == first
    exact, found = generator.logprobs(ids, Full()), generator.logprobs(ids, dense)
    np.testing.assert_allclose(found[: first - 1], exact[: first - 1], atol=1e-5)
    assert np.abs(found[first:] - exact[first:]).max() > 1e-3
    reports = []
    for policy in (GROWING, dense):
        generator.reset()
        generator.prefill(ids, policy)
        reports.append(generator.report())
    whole, later = reports
    assert later.seen_by == tuple(rows for rows in whole.seen_by if rows.start >= first)
    np.testing.assert_array_equal(later.boundaries[:, 0], whole.boundaries[-len(later.seen_by) :, 0])
    np.testing.assert_array_equal(later.last[0], whole.last[0])


def test_sets_are_as_large_as_the_past_asks_for(generator: Generator) -> None:
    ids = random_ids(150)
    generator.reset()
    generator.prefill(ids, GROWING)
    report = generator.report()
    sizes = (report.boundaries >= 0).sum(axis=-1)
    ends = [rows.start // 32 * 32 for rows in report.seen_by]
    assert [(one.min(), one.max()) for one in sizes] == [(GROWING.memory_at(end),) * 2 for end in ends]
    assert sorted({*map(GROWING.memory_at, ends)}) == [10, 16, 24, 32]
    for sets, end in zip(report.boundaries, ends, strict=True):
        kept = sets[..., : GROWING.memory_at(end)]
        assert (np.diff(kept) > 0).all()
        assert (kept[..., -4:] == np.arange(end - 4, end)).all()
    assert report.last.shape[-1] == 32
    seen = MemorySnapshot.take("answer", tuple(ids.tolist()), generator)
    layers, heads = report.last.shape[:2]
    assert (len(seen.sets), seen.seen_by) == (len(ends), report.seen_by)
    assert [sum(seen.counts(i, layers - 1)) for i in range(len(ends))] == [
        heads * GROWING.memory_at(end) for end in ends
    ]
