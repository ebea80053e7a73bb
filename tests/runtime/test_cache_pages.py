"""One pool for several conversations: pages are counted, shared, copied on write, and given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests import bundles
from tests.prefill import altered

from h2o_runtime import Generator
from h2o_runtime.caches import Contiguous, Paged
from h2o_runtime.caches.paged import PagedStore, PagePool, PageTable
from h2o_runtime.caches.stored import CacheDtype
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import ColumnSum, PrefillPolicy

COLSUM = ColumnSum(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=4)
FULL = altered(COLSUM, policy="full")
QUERY = altered(COLSUM, score="query", tile=16, queries=8, candidates=16)
CONTEXT, PAGE = 400, 16
SYSTEM = bundles.random_ids(150, 1).tolist()  # what conversations begin with; not a whole number of pages


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


def pooled(bundle: Path, pool: int = 1 << 24, **more: Any) -> tuple[Generator, PagedStore]:
    """A generator whose rows are no numbers before they are written."""
    options = {"cache": Paged(), "context": CONTEXT, **more}
    generator = Generator.load(bundle, threads=1, pool_bytes=pool, **options)  # type: ignore[arg-type]
    store = generator.session.store
    assert isinstance(store, PagedStore)
    for array in store.pool.arrays:
        array[:] = np.nan if array.dtype.kind == "f" else 111
    return generator, store


def free_of(store: PagedStore) -> int:
    return len(store.pool.free)


# --- The pool ---------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 9)),
        st.tuples(st.just("truncate"), st.integers(0, 20)),
        st.tuples(st.sampled_from(["hold", "go on", "release"]), st.integers(0, 20)),
    ),
    max_size=40,
)


@settings(max_examples=48)
@given(STEPS)
def test_every_sequence_reads_what_was_written_to_it(steps: list[tuple[str, int]]) -> None:
    """Against a model in which each sequence is a list of its own."""
    size, capacity, waiting_at_most = 4, 30, 3
    rows: NDArray[np.int64] = np.zeros((1 + waiting_at_most) * 32, np.int64)
    pool = PagePool(len(rows) // size, size, [rows])
    table, ours = PageTable(pool, capacity), list[int]()
    waiting: list[tuple[NDArray[np.int32], list[int]]] = []
    written = 0
    for step, number in steps:
        if step == "write":
            count = min(number, capacity - len(ours))
            table.reach(len(ours), len(ours) + count)
            for _ in range(count):
                written, at = written + 1, len(ours)
                rows[table.table[at // size] * size + at % size] = written
                ours.append(written)
        elif step == "truncate":
            ours = ours[:number]
            table.truncate(number)
        elif step == "hold" and len(waiting) < waiting_at_most:
            kept = min(number, len(ours))
            waiting.append((table.retain(kept), ours[:kept]))
        elif step == "go on" and waiting:
            pages, values = waiting[number % len(waiting)]
            table.become(pages)
            ours = list(values)
        elif step == "release" and waiting:
            pool.give_back(waiting.pop(number % len(waiting))[0])
        every = [(table.table[: table.used], ours), *waiting]
        counts = np.zeros_like(pool.counts)
        for pages, values in every:
            assert len(pages) == -(-len(values) // size)
            found = rows.reshape(-1, size)[pages].reshape(-1)[: len(values)]
            assert found.tolist() == values
            counts[pages] += 1
        np.testing.assert_array_equal(pool.counts, counts)
        assert sorted(pool.free) == np.flatnonzero(counts == 0).tolist()
        assert (table.table[table.used :] == -1).all()


# --- Conversations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["model", "int8"])
@pytest.mark.parametrize("policy", [FULL, COLSUM, QUERY], ids=["full", "colsum", "query"])
def test_conversations_that_begin_alike_answer_as_if_each_were_alone(
    policy: PrefillPolicy[Any], dtype: CacheDtype, bundle: Path
) -> None:
    """They share the pages of their beginning; what one writes there the others do not see."""
    generator, store = pooled(bundle, cache=Paged(rows=dtype))
    alone = [
        Generator.load(bundle, threads=1, context=CONTEXT, cache=Contiguous(rows=dtype)) for _ in range(3)
    ]
    talks = [[*SYSTEM, *bundles.random_ids(80 + one, one + 5).tolist()] for one in range(3)]
    opening = list(talks[0])
    with generator:
        for turn in range(3):
            for one, (talk, other) in enumerate(zip(talks, alone, strict=True)):
                if one and not turn:  # what the pool has of the beginning
                    other.prefill(opening, policy)
                got = generator.prefill(talk, policy)
                np.testing.assert_array_equal(got, other.prefill(talk, policy))
                assert generator.reused == other.reused
                assert turn or not one or generator.reused >= 100
                np.testing.assert_array_equal(generator.decode(7), other.decode(7))
                talk += [7, *bundles.random_ids(20, 10 * turn + one).tolist()]
        shared = store.pool.counts > 1
        assert shared.sum() >= 100 // PAGE
        assert len(generator.pool) == 2
    for other in alone:
        other.close()


def test_a_change_of_conversation_moves_no_row(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator, store = pooled(bundle)
    copied: list[int] = []
    copy = PagePool.copy

    def counted(self: PagePool, source: int, target: int, rows: int) -> None:
        copied.append(rows)
        copy(self, source, target, rows)

    monkeypatch.setattr(PagePool, "copy", counted)
    with generator:
        first, second = SYSTEM, bundles.random_ids(200, 9).tolist()
        generator.prefill(first, FULL)
        pages, before = store.pages.table[:10].copy(), [array.copy() for array in store.pool.arrays]
        generator.prefill(second, FULL)
        generator.prefill([*first, 3], FULL)
        generator.prefill([*second, 3], FULL)
        generator.prefill([*first, 3, 4], FULL)
        assert generator.reused == 151
        assert not copied
        np.testing.assert_array_equal(store.pages.table[:10], pages)
        at = (pages[:, None] * PAGE + np.arange(PAGE)).reshape(-1)[: len(first)]
        for array, old in zip(store.pool.arrays, before, strict=True):
            np.testing.assert_array_equal(array[at], old[at])
        # Another that begins like the one that waits: of the page in which they part, the common rows are copied.
        generator.prefill([*second[:100], 5], FULL)
        assert (generator.reused, copied) == (100, [100 % PAGE])
        generator.prefill([*second, 3, 4], FULL)
        assert generator.reused == 201


def test_those_that_waited_longest_give_their_pages_back(bundle: Path) -> None:
    generator, store = pooled(bundle)
    with generator:
        everything = free_of(store)
        generator.prefill(SYSTEM, FULL)
        generator.prefill(bundles.random_ids(150, 2), FULL)
        one = generator.pool.nbytes
        assert everything - free_of(store) == 20
        generator.reset()
        assert everything - free_of(store) == 10
    generator, store = pooled(bundle, pool=int(1.5 * one))
    with generator:
        everything = free_of(store)
        for seed in range(1, 5):
            generator.prefill(bundles.random_ids(150, seed), FULL)
        assert (len(generator.pool), everything - free_of(store)) == (1, 20)
        generator.prefill([*bundles.random_ids(150, 3).tolist(), 3], FULL)
        assert generator.reused == 150
        generator.prefill([*SYSTEM, 3], FULL)
        assert generator.reused == 0  # it waited longest
        generator.prefill(
            bundles.random_ids(CONTEXT, 6), FULL
        )  # beside what waits there is room for all of it
        generator.prefill(SYSTEM, FULL)
        assert everything - free_of(store) == 10 * (1 + len(generator.pool))
    # A beginning that all share counts once: of 14 pages each two would not fit otherwise.
    generator, store = pooled(bundle, pool=int(2.5 * one))
    with generator:
        for seed in range(3):
            generator.prefill([*SYSTEM, *bundles.random_ids(1, seed + 20).tolist()], FULL)
            for token in range(70):
                generator.decode(token)
        generator.prefill(bundles.random_ids(20, 7), FULL)
        assert len(generator.pool) >= 2


def test_pages_go_to_files_and_come_back(bundle: Path, tmp_path: Path) -> None:
    """Those that the pool has no room for, and all in the end. Quest sees the rows as if they were new."""
    quest = Quest(page=8, budget=32, dense_layers=0)
    expected = []
    for restart in (False, True):
        generator, _ = pooled(bundle, 1 << 16, folder=tmp_path, decoding=quest)
        with generator, Generator.load(bundle, threads=1, context=CONTEXT, decoding=quest) as alone:
            talks = [bundles.random_ids(150, seed).tolist() for seed in range(1, 4)]
            for talk in talks:
                alone.reset()
                alone.prefill(talk, QUERY)
                expected.append(alone.prefill([*talk, 3], QUERY).copy())
                if not restart:
                    generator.prefill(talk, QUERY)
            if restart:
                for talk, logits in zip(talks, expected, strict=False):
                    np.testing.assert_array_equal(generator.prefill([*talk, 3], QUERY), logits)
                    assert generator.reused == 150


# --- Two long conversations -------------------------------------------------------------------------------
