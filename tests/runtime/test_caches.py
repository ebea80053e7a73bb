"""How rows are stored and where they lie: what changes no bit, what little rounding changes, and what it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import bundles
from tests.prefill import altered

from h2o_runtime import Generator
from h2o_runtime.caches import CACHES, Contiguous, Paged
from h2o_runtime.caches.paged import PagedStore
from h2o_runtime.caches.stored import CacheDtype, StoredCache
from h2o_runtime.errors import ConfigError, InputError
from h2o_runtime.execution.footprint import cache_bytes
from h2o_runtime.policies.prefill import ColumnSum, PrefillPolicy, Subquadratic
from h2o_runtime.sessions.saved import SavedSession, save_session

pytestmark = pytest.mark.usefixtures("models_stay_loaded")

COLSUM = ColumnSum(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=4)
POLICIES = {
    "colsum": COLSUM,
    "query": altered(COLSUM, score="query", tile=16, queries=8, candidates=16),
    "full": altered(COLSUM, policy="full"),
    "subquadratic": Subquadratic(window=16, block=8, batch_size=64),
}
SHAPE, CONTEXT = "llama-g2-d64-llama3", 192
PROMPT = bundles.random_ids(100, 1).tolist()
DTYPES: tuple[CacheDtype, ...] = ("model", "float16", "int8")
ALL = [kind(rows=dtype) for kind in (Contiguous, Paged) for dtype in DTYPES]


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, SHAPE)[1]


def load(bundle: Path, cache: StoredCache, **more: object) -> Generator:
    return Generator.load(bundle, context=CONTEXT, threads=1, cache=cache, **more)  # type: ignore[arg-type]


def conversation(generator: Generator, policy: PrefillPolicy[Any]) -> Iterator[np.ndarray]:
    """Logits of a prompt, answers, a next turn, another question to the same text, and a shorter prompt."""
    yield generator.prefill(PROMPT, policy)
    for token in (7, 9, 11):
        yield generator.decode(token)
    yield generator.prefill([*PROMPT, 7, 9, 11, *bundles.random_ids(40, 2).tolist()], policy)
    yield generator.prefill([*PROMPT[:80], *bundles.random_ids(30, 3).tolist()], policy)
    yield generator.prefill(PROMPT[:37], policy)
    yield generator.decode(5)


@pytest.mark.parametrize("dtype", ["model", "int8"])
@pytest.mark.parametrize("name", POLICIES)
def test_pages_change_no_bit(name: str, dtype: str, bundle: Path) -> None:
    """In order, and in any order in a pool where nothing else is a number."""
    rng = np.random.default_rng(5)
    with (
        load(bundle, Contiguous(rows=dtype)) as plain,
        load(bundle, Paged(rows=dtype, page=64 if dtype == "int8" else 16)) as paged,
    ):
        store = paged.session.store
        assert isinstance(store, PagedStore)
        for mixed in (False, True):
            paged.reset()
            plain.reset()
            if mixed:
                store.pool.free = rng.permutation(store.pool.free).tolist()
            for rows in store.layers:
                for array in (rows.k, rows.v, *(rows.scales or ())):
                    array[:] = np.nan if array.dtype.kind == "f" else 111
            for ours, theirs in zip(
                conversation(paged, POLICIES[name]), conversation(plain, POLICIES[name]), strict=True
            ):
                assert np.isfinite(ours).all()
                np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("dtype", "share"), [("float16", 5e-3), ("int8", 0.15)])
@pytest.mark.parametrize("name", POLICIES)
def test_shorter_rows_are_almost_the_same(name: str, dtype: str, share: float, bundle: Path) -> None:
    with load(bundle, Contiguous()) as exact, load(bundle, Contiguous(rows=dtype)) as rounded:
        for ours, theirs in zip(
            conversation(rounded, POLICIES[name]), conversation(exact, POLICIES[name]), strict=True
        ):
            assert 0 < np.abs(ours - theirs).max() <= share * np.abs(theirs).max()


@pytest.mark.parametrize("cache", ALL, ids=lambda cache: f"{cache.name}-{cache.rows}")
def test_a_saved_session_goes_on_to_the_bit(cache: StoredCache, bundle: Path, tmp_path: Path) -> None:
    question = [*PROMPT, 7, *bundles.random_ids(40, 2).tolist()]
    with load(bundle, cache) as generator, load(bundle, cache) as other:
        generator.prefill(PROMPT, COLSUM)
        generator.decode(7)
        save_session(generator.session, tmp_path / "session")
        other.prefill(question[::-1], COLSUM)  # what was there before is gone
        SavedSession.open(tmp_path / "session").load_into(other.session, COLSUM)
        np.testing.assert_array_equal(other.decode(9), generator.decode(9))
        np.testing.assert_array_equal(other.prefill(question, COLSUM), generator.prefill(question, COLSUM))
        assert other.reused == generator.reused > 0


def test_a_session_of_another_dtype_is_one_sentence(bundle: Path, tmp_path: Path) -> None:
    with load(bundle, Contiguous(rows="int8")) as generator:
        generator.prefill(PROMPT, COLSUM)
        save_session(generator.session, tmp_path / "session")
    with load(bundle, Contiguous()) as other:
        saved = SavedSession.open(tmp_path / "session")
        with pytest.raises(
            InputError, match="are int8, and this run stores float32: give the same rows of `cache`"
        ):
            saved.load_into(other.session, COLSUM)


# --- Pages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [8, 24, 8192])
def test_pages_that_there_are_not(rows: int) -> None:
    with pytest.raises(ConfigError, match="page must be"):
        Paged(page=rows)


# --- What they take ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ALL, ids=lambda cache: f"{cache.name}-{cache.rows}")
def test_what_a_store_takes_is_known_before(cache: StoredCache, bundle: Path) -> None:
    with load(bundle, cache) as generator:
        assert generator.session.store.nbytes == cache.store_bytes(generator.model, CONTEXT)


def test_every_form_is_listed(bundle: Path) -> None:
    with load(bundle, Contiguous()) as generator:
        model = generator.model
    sizes = cache_bytes(model, 4096)
    names = {
        f"{kind.name} {dtype}" for kind in (Contiguous, Paged) for dtype in ("float32", "float16", "int8")
    }
    assert names <= set(sizes)
    assert {kind.name for kind in CACHES} == {name.split()[0] for name in sizes}
    per_row = model.layers * 2 * model.kv_heads
    assert sizes["contiguous float32"] == 4096 * per_row * 64 * 4
    fresh = 4096 * 2 * model.kv_heads * 64 * 4  # rows of one layer, as dense graphs write them
    assert sizes["contiguous int8"] == 4096 * per_row * (64 + 4) + fresh
