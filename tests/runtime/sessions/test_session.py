"""Several sessions over one set of weights: each gives what it gives alone."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import bundles
from tests.prefill import altered
from tests.runtime.sessions.resident import shares

from h2o_runtime import Generator
from h2o_runtime.caches import Cache, Contiguous, Evicting, Offload, Paged
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import PrefillPolicy, Query

pytestmark = pytest.mark.usefixtures("models_stay_loaded")

CONTEXT = 300
SPARSE = Query(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=4)
FULL = altered(SPARSE, policy="full")
PROMPTS = [bundles.random_ids(150, seed).tolist() for seed in range(2)]


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


def turns(
    generator: Generator, prompt: list[int], policy: PrefillPolicy[Any]
) -> Iterator[NDArray[np.float32]]:
    """Logits of a prompt, of tokens behind it, of a second turn and of tokens behind that."""
    answers = ([7, 9, 11], [8, 10])
    question = bundles.random_ids(30, 5).tolist()
    for tokens, answer in zip((prompt, [*prompt, *answers[0], *question]), answers, strict=True):
        yield generator.prefill(tokens, policy).copy()
        for token in answer:
            yield generator.decode(token).copy()


@pytest.mark.parametrize(
    ("cache", "options"),
    [
        (Contiguous(), {}),
        (Contiguous(rows="int8"), {"decoding": Quest(budget=32)}),
        (Paged(), {}),
        (Offload(buffers=1), {}),
        (Evicting(tokens=128), {}),
    ],
    ids=["contiguous", "quest", "paged", "offload", "evicting"],
)
def test_sessions_that_take_turns_by_the_call(
    bundle: Path, cache: Cache, options: dict[str, object], tmp_path: Path
) -> None:
    """One under sparse prefill, one under full attention, in one thread: a call of the one, a call of the other."""
    if isinstance(cache, Offload):
        cache = replace(cache, file=str(tmp_path / "rows"))
    settings = {"context": CONTEXT, "threads": 1, "device": "cpu", "cache": cache, **options}
    policies = (FULL, FULL) if isinstance(cache, Evicting) else (SPARSE, FULL)
    expected = []
    for prompt, policy in zip(PROMPTS, policies, strict=True):
        with Generator.load(bundle, **settings) as alone:  # type: ignore[arg-type]
            expected.append(list(turns(alone, prompt, policy)))
    with Generator.load(bundle, **settings) as first, Generator(first.loaded) as second:  # type: ignore[arg-type]
        stories = [turns(*it) for it in zip((first, second), PROMPTS, policies, strict=True)]
        together = [list(pair) for pair in zip(*stories, strict=True)]
        assert first.session.store is not second.session.store
    for found, wanted in zip(together, zip(*expected, strict=True), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_generator_that_does_not_own_the_weights_leaves_them(bundle: Path) -> None:
    with Generator.load(bundle, context=CONTEXT, threads=1, device="cpu") as first:
        expected = first.prefill(PROMPTS[0], FULL).copy()
        with Generator(first.loaded) as second:
            np.testing.assert_array_equal(second.prefill(PROMPTS[0], FULL), expected)
        assert np.isfinite(first.decode(7)).all()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
@pytest.mark.parametrize(
    "cache",
    [Contiguous(), Contiguous(rows="int8"), Paged(), Evicting(tokens=32768)],
    ids=["contiguous", "int8", "paged", "evicting"],
)
def test_only_a_shared_folder_takes_the_memory_of_a_cache_at_once(bundle: Path, cache: Cache) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:  # nothing freed to take again
        untouched, committed = fresh.submit(shares, bundle, cache).result()
    assert untouched < 0.2
    assert committed > 0.8


def test_a_server_of_a_shared_folder_commits(bundle: Path, tmp_path: Path) -> None:
    with Generator.load(bundle, context=64, threads=1, folder=tmp_path, folder_shared=True) as generator:
        assert generator.spec.commit
