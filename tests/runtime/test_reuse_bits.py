"""A prompt that goes on from cached rows gives the bits of one that is read at once, with weights of 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests import bundles
from tests.plugins.native_cases import MULTIPLIES

from h2o_runtime import Generator
from h2o_runtime.caches import Contiguous, Paged
from h2o_runtime.names import AttentionPrecision
from h2o_runtime.policies.prefill import Full, Query

FULL = Full(batch_size=700)
QUERY = Query(chunk_size=512, batch_size=1024, local=32, heavy=64, tile=128, dense_tail=128)
DOCUMENT = bundles.random_ids(2400, 1)
CACHES = {"contiguous": Contiguous(), "int8": Paged(rows="int8")}
# What is kept by the third prompt. Under query its dense tail begins a tile before those of the others.
KEPT = {"full": 2400, "query": 2176}


@pytest.fixture(scope="module", params=CACHES)
def cache(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["float32", *MULTIPLIES])
def generator(request: pytest.FixtureRequest, cache: str, shared_folder: Path) -> Iterator[Generator]:
    precision: AttentionPrecision = request.param
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3", "-int8", weights="int8")[1]
    options = {"context": 2600, "threads": 2, "device": "cpu", "dense_form": "native"}
    with Generator.load(folder, cache=CACHES[cache], attention_precision=precision, **options) as loaded:
        yield loaded


def test_another_question_gives_the_bits_of_a_fresh_run(generator: Generator, cache: str) -> None:
    prompts = [np.concatenate([DOCUMENT, bundles.random_ids(length, length)]) for length in (40, 63, 24)]
    # Over int8 rows a fresh run under query sees its own chunk before it is rounded.
    for policy in [FULL] if cache == "int8" else [FULL, QUERY]:
        fresh = []
        for prompt in prompts:
            generator.reset()
            fresh.append(generator.prefill(prompt, policy).copy())
        generator.reset()
        reused = []
        for prompt, expected in zip(prompts, fresh, strict=True):
            np.testing.assert_array_equal(generator.prefill(prompt, policy), expected)
            reused.append(generator.reused)
        assert reused == [0, 2400, KEPT["full" if policy is FULL else "query"]]


@pytest.mark.parametrize("length", [2, 26, 300, 700])
def test_a_prompt_that_comes_again_has_the_bits_of_its_first_time(
    generator: Generator, cache: str, length: int
) -> None:
    """Only its last row is read again: in the first chunk, or in a dense tail."""
    prompt = DOCUMENT[:length]
    for policy in (FULL, QUERY):
        generator.reset()
        answers = []
        for _ in range(2):
            logits = [generator.prefill(prompt, policy).copy()]
            logits += [generator.decode(int(logits[-1].argmax())).copy() for _ in range(2)]
            answers.append(logits)
        lost = cache == "int8" and policy is QUERY and length <= QUERY.chunk_size  # rows before rounding
        assert generator.reused == (0 if lost else length - 1)
        np.testing.assert_array_equal(answers[1], answers[0])
