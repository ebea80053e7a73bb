"""Answers by function bodies are those by kernels, whatever was asked before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import bundles
from tests.bundles import random_ids
from tests.prefill import altered

from h2o_runtime import Generator
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.caches import CACHES, Cache, Contiguous, Evicting, Offload, Paged
from h2o_runtime.policies.decode import DecodePolicy, FullDecode
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.decode.subquadratic import SubquadraticDecode
from h2o_runtime.policies.prefill import PREFILL, ColumnSum, PrefillPolicy, Subquadratic, VerticalSlash
from h2o_runtime.policies.prefill.h2o import SCORES
from h2o_runtime.sessions.saved import SavedSession, save_session

pytestmark = pytest.mark.usefixtures("small_blocks", "models_stay_loaded")
Array = NDArray[Any]
Both = Sequence[Generator]

PROVIDERS = ("functions", "native")

COLSUM = ColumnSum(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=10)
QUERY = altered(COLSUM, score="query", tile=8, queries=4)
POLICIES = {
    "query": QUERY,
    "query-heads-narrowed": altered(QUERY, heads="query", candidates=24),
    "query-grown": altered(QUERY, grow=64),
    "query-dense-start": altered(QUERY, dense_start=40),
    "query-guarded-narrowed": altered(QUERY, missed=0.06, candidates=24, heads="query"),
    "colsum": COLSUM,
    "window-heads": altered(COLSUM, score="window", window=4, heads="query"),
    "full": altered(COLSUM, policy="full"),
    "subquadratic": Subquadratic(window=16, block=8, batch_size=64),
    "minference": VerticalSlash(chunk_size=32, batch_size=64, vertical=30, slash=50),
    "minference-prompt": VerticalSlash(batch_size=64, vertical=30, slash=50, estimate="prompt"),
}
CACHED: dict[str, tuple[Cache, DecodePolicy[Any], float]] = {  # and how much of a logit may be lost
    "offload": (Offload(), FullDecode(), 1e-5),
    "paged": (Paged(), Quest(page=8, budget=32, dense_layers=0), 1e-5),
    "evicting": (Evicting(tokens=72), FullDecode(), 1e-5),
    "float16": (Contiguous(rows="float16"), SubquadraticDecode(window=8, block=8), 1e-3),
    "int8": (Paged(rows="int8"), FullDecode(), 0.02),  # numbers next to a half may be rounded either way
}
CONTEXT = 256
DOCUMENT, OTHER = (random_ids(150, seed).tolist() for seed in (3, 4))
Order = Callable[[Generator, PrefillPolicy[Any], Path], Iterator[Array]]


def in_pieces(ours: Generator, policy: PrefillPolicy[Any], folder: Path) -> Iterator[Array]:
    for _ in ours.run(Request(Prompt(tuple(DOCUMENT)), 1, policy), prompt_piece=32):
        pass
    assert ours.session.logits is not None
    yield ours.session.logits


def turns(ours: Generator, policy: PrefillPolicy[Any], folder: Path) -> Iterator[Array]:
    """Tokens, a short turn, one of several chunks, and that one changed, so that the session goes back."""
    yield ours.prefill(DOCUMENT[:70], policy)
    yield ours.decode(7)
    yield ours.decode(9)
    told = [*DOCUMENT[:70], 7, 9, *OTHER[:20]]
    yield ours.prefill(told, policy)
    yield ours.prefill([*told, *OTHER[20:90]], policy)
    yield ours.decode(11)
    yield ours.prefill([*told, *OTHER[40:100]], policy)


def restored(ours: Generator, policy: PrefillPolicy[Any], folder: Path) -> Iterator[Array]:
    """A session that was saved, then another answer, then the session again: its answer goes on, and a question."""
    yield ours.prefill([*DOCUMENT[:85], *OTHER[:30]], policy)
    save_session(ours.session, folder / ours.spec.provider.name)
    ours.prefill(OTHER, policy)
    SavedSession.open(folder / ours.spec.provider.name).load_into(ours.session, policy)
    yield ours.decode(9)
    yield ours.prefill(DOCUMENT, policy)


@pytest.fixture(scope="module")
def folders(shared_folder: Path) -> tuple[Path, Path]:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")


def load(bundle: Path, attention: str, **options: Any) -> Generator:
    return Generator.load(bundle, context=CONTEXT, threads=1, device="cpu", attention=attention, **options)


@pytest.fixture(scope="module")
def both(folders: tuple[Path, Path]) -> Iterator[Both]:
    with load(folders[1], PROVIDERS[0]) as bodies, load(folders[1], PROVIDERS[1]) as kernels:
        yield bodies, kernels


def told(ours: Generator, policy: PrefillPolicy[Any], order: Order, folder: Path) -> Iterator[Array]:
    """Logits after each call, how many rows it found, and what its prompt saw of its attention."""
    ours.reset()
    for logits in order(ours, policy, folder):
        yield logits.copy()
        yield np.array(ours.reused)
        seen = ours.seen()
        yield np.array([] if seen is None else astuple(seen))


def compare(both: Both, policy: PrefillPolicy[Any], order: Order, folder: Path, share: float) -> None:
    """Raises AssertionError where they differ."""
    for one, other in zip(*(told(each, policy, order, folder) for each in both), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=share * np.abs(other).max(initial=1e-9))


def test_every_policy_rule_and_cache_is_compared() -> None:
    assert {policy.name for policy in POLICIES.values()} == set(PREFILL.names)
    assert {type(policy) for policy in POLICIES.values()} >= set(SCORES)
    assert {cache.name for cache, *_ in CACHED.values()} == set(CACHES.names)


@pytest.mark.parametrize("name", POLICIES)
def test_bodies_give_what_kernels_give(both: Both, name: str, tmp_path: Path) -> None:
    compare(both, POLICIES[name], turns, tmp_path, 1e-5)


@pytest.mark.parametrize("cache", CACHED)
def test_in_every_cache(folders: tuple[Path, Path], cache: str, tmp_path: Path) -> None:
    kind, decoding, share = CACHED[cache]
    kinds = [replace(kind, file=str(tmp_path / each)) if cache == "offload" else kind for each in PROVIDERS]
    with ExitStack() as stack:
        both = [
            stack.enter_context(load(folders[1], attention, cache=each, decoding=decoding))
            for attention, each in zip(PROVIDERS, kinds, strict=True)
        ]
        for order in (in_pieces, restored, turns):
            if (cache, order) != ("evicting", restored):  # a session that has evicted cannot be saved
                compare(both, POLICIES["query-heads-narrowed"], order, tmp_path, share)


def test_some_chunks_of_a_guarded_prompt_are_widened(both: Both) -> None:
    """Or the tests above would compare no guard."""
    for each in both:
        each.reset()
        each.prefill(DOCUMENT, POLICIES["query-guarded-narrowed"])
        seen = each.seen()
        assert seen is not None
        assert 0 < seen.widened < 1
