"""Policy full is the model itself: tokens and logits equal those of transformers, for every shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests import bundles
from tests.bundles import IntArray, random_ids, relative_error
from tests.conftest import EXAMPLE
from transformers import AutoModelForCausalLM

from h2o_runtime import Generator
from h2o_runtime.answers.events import TokenGenerated
from h2o_runtime.answers.sampling import Sampling
from h2o_runtime.policies.prefill import Full

FULL = Full()
STEPS = 64


class Transformers:
    """The checkpoint under transformers, in float32 as the bundle is."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.no_grad()
    def logits(self, ids: IntArray) -> NDArray[np.float32]:
        """[N, vocab]"""
        out: NDArray[np.float32] = self.model(torch.from_numpy(ids)[None]).logits[0].numpy()
        return out


def answer(generator: Generator, ids: IntArray, steps: int) -> list[int]:
    events = generator.generate(ids, steps, FULL, Sampling(temperature=0))
    return [event.sampled.token for event in events if isinstance(event, TokenGenerated)]


def check_against(theirs: Transformers, generator: Generator, ids: IntArray) -> None:
    answered = answer(generator, ids, STEPS)
    assert len(answered) == STEPS
    everything = np.concatenate([ids, np.array(answered, np.int64)])
    logits = theirs.logits(everything)
    # Each token is the likeliest after those before it: greedy decoding would have chosen the same ones.
    assert logits[len(ids) - 1 : -1].argmax(-1).tolist() == answered

    generator.reset()
    ours = [generator.prefill(ids, FULL).copy()]
    ours += [generator.decode(token).copy() for token in answered]
    assert relative_error(np.stack(ours), logits[len(ids) - 1 :]) <= 1e-4

    logprobs = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
    logprobs = logprobs[np.arange(len(everything) - 1), everything[1:]]
    np.testing.assert_allclose(generator.logprobs(everything, FULL), logprobs, atol=1e-3)


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    """Models this small are slower on several threads, the more so when tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", bundles.EACH_SHAPE)
def test_random_models_of_every_shape(shared_folder: Path, name: str) -> None:
    checkpoint, bundle = bundles.named(shared_folder, name)
    theirs = Transformers(checkpoint)
    with Generator.load(bundle, context=512) as generator:
        for length in (1, 37, 300):
            check_against(theirs, generator, random_ids(length, seed=length))


def test_the_example_model_on_real_text(tiny_generator: Generator, heldout_ids: IntArray) -> None:
    theirs = Transformers(EXAMPLE)
    for length in (64, 1500):
        check_against(theirs, tiny_generator, heldout_ids[:length])


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_tiles_change_nothing(tiny_generator: Generator, heldout_ids: IntArray, batch_size: int) -> None:
    ids = heldout_ids[:150]
    whole = tiny_generator.logprobs(ids, FULL)
    tiled = tiny_generator.logprobs(ids, Full(batch_size=batch_size))
    np.testing.assert_allclose(tiled, whole, atol=1e-4)
