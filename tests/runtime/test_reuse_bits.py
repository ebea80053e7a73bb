"""A prompt that goes on from cached rows gives the bits of one that is read at once, with weights of 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests import bundles

from h2o_runtime import Generator, PrefillConfig
from h2o_runtime.caches import Contiguous, Paged
from h2o_runtime.names import AttentionPrecision

FULL = PrefillConfig(policy="full", batch_size=700)
QUERY = PrefillConfig(chunk_size=512, batch_size=1024, local=32, heavy=64, score_tile=128, dense_tail=128)
DOCUMENT = bundles.random_ids(2400, 1)
CACHES = {"contiguous": Contiguous(), "paged": Paged(), "int8": Paged(cache_dtype="int8")}


@pytest.fixture(scope="module", params=CACHES)
def cache(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def generator(request: pytest.FixtureRequest, cache: str, shared_folder: Path) -> Iterator[Generator]:
    precision: AttentionPrecision = request.param
    folder = bundles.named(shared_folder, "llama-g2-d64-llama3", "-int8", weights="int8")[1]
    options = {"context": 2600, "threads": 2, "device": "cpu", "dense_form": "native"}
    with Generator.load(folder, cache=CACHES[cache], attention_precision=precision, **options) as loaded:
        yield loaded


@pytest.mark.parametrize("name", ["full", "query"])
def test_another_question_gives_the_bits_of_a_fresh_run(generator: Generator, cache: str, name: str) -> None:
    if name == "query" and cache == "int8":
        pytest.skip("a fresh run under query sees its own chunk before it is rounded")
    config = FULL if name == "full" else QUERY
    prompts = [np.concatenate([DOCUMENT, bundles.random_ids(length, length)]) for length in (40, 63, 24)]
    fresh = []
    for prompt in prompts:
        generator.reset()
        fresh.append(generator.prefill(prompt, config).copy())
    generator.reset()
    reused = []
    for prompt, expected in zip(prompts, fresh, strict=True):
        np.testing.assert_array_equal(generator.prefill(prompt, config), expected)
        reused.append(generator.reused)
    # Under query the third prompt's dense tail begins a tile before those of the others.
    assert reused == ([0, 2400, 2400] if name == "full" else [0, 2400, 2176])
