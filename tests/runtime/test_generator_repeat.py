"""A request that comes again has the same answer, whatever the cache holds of it by then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import bundles
from tests.bundles import random_ids
from tests.prefill import altered

from h2o_runtime import Generator
from h2o_runtime.policies.prefill import PrefillPolicy, Query

POLICY = Query(chunk_size=16, batch_size=32, local=4, heavy=4, dense_tail=6)
WINDOW = altered(POLICY, score="window", window=3)


@pytest.fixture(scope="module")
def generator(shared_folder: Path) -> Iterator[Generator]:
    with Generator.load(bundles.named(shared_folder, "llama-g2-d64-llama3")[1], context=400) as loaded:
        yield loaded


def answer(
    generator: Generator, prompt: list[int], policy: PrefillPolicy[Any], reuse: bool = True
) -> list[NDArray]:  # type: ignore[type-arg]
    """Logits of a prompt and of the five likeliest tokens after it."""
    logits = [generator.prefill(prompt, policy, reuse=reuse).copy()]
    for _ in range(5):
        logits.append(generator.decode(int(logits[-1].argmax())).copy())
    return logits


@pytest.mark.parametrize("policy", [POLICY, WINDOW], ids=["query", "window"])
@pytest.mark.parametrize("new", [5, 60])
def test_a_turn_that_comes_again_has_the_same_answer(
    generator: Generator, policy: PrefillPolicy[Any], new: int
) -> None:
    generator.reset()
    first = random_ids(90).tolist()
    said = [int(logits.argmax()) for logits in answer(generator, first, policy)]
    turn = [*first, *said, *random_ids(new, 3).tolist()]
    expected = answer(generator, turn, policy)
    sets = [one.copy() for one in generator.report().last]
    for _ in range(3):
        np.testing.assert_array_equal(answer(generator, turn, policy), expected)
        np.testing.assert_array_equal(generator.report().last, sets)
        assert generator.reused == len(first) + 5
    other = [*turn[:-3], 7, 8, 9]
    changed = answer(generator, other, policy)
    np.testing.assert_array_equal(answer(generator, turn, policy), expected)
    np.testing.assert_array_equal(answer(generator, other, policy), changed)


def test_without_reuse_no_earlier_request_has_a_say(generator: Generator) -> None:
    generator.reset()
    first = random_ids(90).tolist()
    turn = [*first, *random_ids(60, 3).tolist()]
    expected = answer(generator, turn, POLICY)
    answer(generator, first, POLICY)
    for _ in range(2):
        np.testing.assert_array_equal(answer(generator, turn, POLICY, reuse=False), expected)
        assert generator.reused == 0
