"""Several conversations on one cache: each goes on as if it had the cache for itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import bundles
from tests.prefill import altered

from h2o_runtime import Generator
from h2o_runtime.caches import Cache, Contiguous, Paged
from h2o_runtime.policies.prefill import PrefillPolicy, Query
from h2o_runtime.sessions import pool

SPARSE = Query(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=4)
FULL = altered(SPARSE, policy="full")
CONTEXT = 400
CONTIGUOUS = Contiguous()
OPENINGS = [bundles.random_ids(150, seed).tolist() for seed in range(3)]


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


@pytest.fixture
def alone(bundle: Path) -> Iterator[Generator]:
    """For one conversation, without a place for others."""
    with Generator.load(bundle, context=CONTEXT, threads=1) as generator:
        yield generator


def roomy(bundle: Path, most_bytes: int = 1 << 26, cache: Cache = CONTIGUOUS) -> Generator:
    return Generator.load(bundle, context=CONTEXT, threads=1, pool_bytes=most_bytes, cache=cache)


@pytest.mark.parametrize("policy", [SPARSE, FULL], ids=["sparse", "full"])
def test_each_turn_reads_only_what_is_new(bundle: Path, alone: Generator, policy: PrefillPolicy[Any]) -> None:
    answers: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}
    turns = [bundles.random_ids(20, 10 + turn).tolist() for turn in range(4)]
    with roomy(bundle) as generator:
        known = {one: list(opening) for one, opening in enumerate(OPENINGS)}
        for turn, question in enumerate(turns):
            for one, tokens in known.items():
                retained = len(tokens) if turn else 0
                tokens += question if turn else []
                answers[one].append(generator.prefill(tokens, policy).copy())
                assert generator.reused == retained
                answers[one].append(generator.decode(7).copy())
                tokens.append(7)
        assert len(generator.pool) == 2
    for one, opening in enumerate(OPENINGS):
        alone.reset()
        expected, tokens = [], list(opening)
        for turn, question in enumerate(turns):
            tokens += question if turn else []
            expected += [alone.prefill(tokens, policy).copy(), alone.decode(7).copy()]
            tokens.append(7)
        for found, wanted in zip(answers[one], expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_those_that_waited_longest_make_room(bundle: Path) -> None:
    with roomy(bundle) as generator:
        for opening in OPENINGS[:2]:
            generator.prefill(opening, FULL)
        one = generator.pool.nbytes
    with roomy(bundle, most_bytes=int(1.5 * one)) as generator:
        for opening in OPENINGS:
            generator.prefill(opening, FULL)
        assert len(generator.pool) == 1
        assert generator.pool.nbytes == one
        generator.prefill([*OPENINGS[1], 3], FULL)
        assert generator.reused == 150
        generator.prefill([*OPENINGS[0], 3], FULL)
        assert generator.reused == 0  # it waited longest
        generator.prefill(bundles.random_ids(350, 9), FULL)
        waiting = generator.pool.nbytes
        generator.prefill(OPENINGS[2][:10], FULL)
        assert generator.pool.nbytes == waiting > 0  # one that is too long for all of the room takes nobody's
    with roomy(bundle, most_bytes=one // 2) as generator:
        for opening in OPENINGS:
            generator.prefill(opening, FULL)
        assert len(generator.pool) == 0


def test_what_goes_on_elsewhere_is_not_there_twice(bundle: Path) -> None:
    """A conversation that is changed in the middle is two; one that goes on is one."""
    with roomy(bundle) as generator:
        other = [*OPENINGS[0][:60], *bundles.random_ids(90, 5).tolist()]
        generator.prefill(OPENINGS[0], FULL)
        generator.prefill(other, FULL)
        assert (generator.reused, len(generator.pool)) == (60, 1)
        generator.prefill([*OPENINGS[0], 5], FULL)
        assert (generator.reused, len(generator.pool)) == (150, 1)
        generator.prefill([*OPENINGS[0], 5, 6, 7], FULL)
        assert (generator.reused, len(generator.pool)) == (153 - 2, 1)


@pytest.mark.parametrize("cache", [CONTIGUOUS, Paged()], ids=["contiguous", "paged"])
@pytest.mark.parametrize("policy", [SPARSE, FULL], ids=["sparse", "full"])
def test_a_session_that_another_begins_like_waits_on(
    bundle: Path, alone: Generator, policy: PrefillPolicy[Any], cache: Cache
) -> None:
    """A waits, C is at work, B begins with A's document: B takes a copy of it, and A goes on where it was."""
    first = [*OPENINGS[0], *bundles.random_ids(90, 3).tolist()]
    same_document = [*OPENINGS[0], *bundles.random_ids(80, 4).tolist()]
    second = [*first, 7, *bundles.random_ids(20, 5).tolist()]
    with roomy(bundle, cache=cache) as generator:
        generator.prefill(first, policy)
        generator.decode(7)
        generator.prefill(OPENINGS[1], policy)
        generator.prefill(same_document, policy)
        assert generator.reused == (128 if policy is SPARSE else 150)
        logits = generator.prefill(second, policy)
        assert (generator.reused, len(generator.pool)) == (len(first) + 1, 2)
    alone.prefill(first, policy)
    alone.decode(7)
    np.testing.assert_array_equal(logits, alone.prefill(second, policy))


def test_a_fresh_start_keeps_the_conversation_too(bundle: Path) -> None:
    with roomy(bundle) as generator:
        generator.prefill(OPENINGS[0], FULL)
        generator.prefill(OPENINGS[1], SPARSE, reuse=False)
        generator.prefill([*OPENINGS[0], 3], FULL)
        assert generator.reused == 150
        generator.prefill([*OPENINGS[1], 3], SPARSE)
        assert generator.reused == 150


@pytest.mark.parametrize(
    ("cache", "shared", "waiting"),
    [(CONTIGUOUS, 160, 0), (CONTIGUOUS, 120, 1), (Paged(), 160, 1), (Paged(), 200, 0)],
    ids=["contiguous little", "contiguous much", "pages little", "pages next to nothing"],
)
def test_a_session_is_copied_only_for_what_takes_longer_to_read(
    bundle: Path, cache: Cache, shared: int, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 240 tokens those before `shared` go on in the next prompt. Pages are not copied."""
    monkeypatch.setattr(pool, "COPIED", 2)  # the copy takes as long as reading 120 tokens
    first = bundles.random_ids(240, 7).tolist()
    with roomy(bundle, cache=cache) as generator:
        generator.prefill(first, FULL)
        generator.prefill([*first[:shared], first[shared] ^ 1, 5], FULL)
        assert generator.reused == shared
        assert len(generator.pool) == waiting
