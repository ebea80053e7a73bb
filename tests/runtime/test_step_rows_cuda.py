"""Decode steps of several rows on a GPU, whose place the emulation takes: equal to the CPU's steps of one row.

ONNX Runtime executes the dense graphs. Its products of several rows may round otherwise than those of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import bundles
from tests.bundles import random_ids

from h2o_runtime import Generator
from h2o_runtime.caches import Contiguous
from h2o_runtime.execution.answer_steps import decode_together
from h2o_runtime.execution.step_rows import StepRow
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.policies.prefill import Full

pytestmark = pytest.mark.usefixtures("dense_graphs_wait")

CONTEXT = 200
FULL = Full()
PROMPTS = [random_ids(length, seed).tolist() for seed, length in enumerate((5, 64, 130))]


def close(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    assert np.abs(ours - theirs).max() <= 2e-5 * np.abs(theirs).max()


@pytest.fixture
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


@pytest.fixture
def cuda(bundle: Path, emulated_cuda: ModuleType) -> Iterator[Generator]:
    with Generator.load(bundle, context=CONTEXT, device="cuda", slots=len(PROMPTS)) as generator:
        yield generator


def slots(generator: Generator) -> tuple[Generator, ...]:
    return (generator, *generator.others)


def expected(bundle: Path, texts: Sequence[Sequence[int]], **options: Any) -> list[NDArray[np.float32]]:
    """After each token behind a prompt, on the CPU."""
    with Generator.load(bundle, context=CONTEXT, device="cpu", **options) as cpu:
        found = []
        for prompt, tokens in zip(PROMPTS, texts, strict=True):
            cpu.reset()
            cpu.prefill(prompt, FULL)
            found.append(np.stack([cpu.decode(token).copy() for token in tokens]))
    return found


def test_steps_of_several_sessions_and_of_several_rows_of_one(bundle: Path, cuda: Generator) -> None:
    """Sessions change their places in the step, and drop rows that a step has tried."""
    texts = [[7, 8, 9, 10], [11, 12, 13, 14], [15, 16, 17, 18]]
    wanted = expected(bundle, texts)
    forward = cuda.loaded.forward
    for generator, prompt in zip(slots(cuda), PROMPTS, strict=True):
        generator.prefill(prompt, FULL)
    for step in range(4):
        order = np.roll(range(len(PROMPTS)), step)
        ahead = 3 if step == 2 else 0  # rows of the first session that do not stay
        rows = [
            StepRow(token, slots(cuda)[which].session)
            for place, which in enumerate(order)
            for token in [texts[which][step], *[99] * (0 if place else ahead)]
        ]
        got = forward.decode_rows(rows)
        at = 0
        for place, which in enumerate(order):
            close(got[at], wanted[which][step])
            at += 1 if place else 1 + ahead
            slots(cuda)[which].session.decoded([texts[which][step]])
    for generator, prompt, text in zip(slots(cuda), PROMPTS, texts, strict=True):
        assert generator.session.known.tolist() == prompt + text


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_rows_that_are_stored_shorter(dtype: Any, bundle: Path, emulated_cuda: ModuleType) -> None:
    cache = Contiguous(rows=dtype)
    texts = [[7, 8]] * len(PROMPTS)
    wanted = expected(bundle, texts, cache=cache)
    with Generator.load(bundle, context=CONTEXT, device="cuda", cache=cache, slots=len(PROMPTS)) as cuda:
        for generator, prompt in zip(slots(cuda), PROMPTS, strict=True):
            generator.prefill(prompt, FULL)
        for step in range(2):
            steps = [(one.session, [7 + step]) for one in slots(cuda)]
            for which, (one, got) in enumerate(
                zip(slots(cuda), decode_together(cuda.loaded.forward, steps), strict=True)
            ):
                error = np.abs(got[0] - wanted[which][step]).max()
                assert error <= (0.02 if dtype == "int8" else 1e-3) * np.abs(wanted[which][step]).max()
                one.session.decoded([7 + step])


def test_lookup_gives_the_same_tokens(cuda: Generator) -> None:
    """A prompt that repeats itself, so that drafts are made and accepted."""
    prompt = PROMPTS[0] * 12
    answers = []
    for speculate in ("off", "lookup"):
        events = list(cuda.generate(prompt, 40, FULL, speculate=speculate))
        answers.append([event.sampled.token for event in events[1:-1]])
        assert cuda.speculation(speculate)[0] == speculate
    assert answers[0] == answers[1]
    assert cuda.drafts.accepted > 0


def test_the_most_rows(cuda: Generator) -> None:
    cuda.prefill(PROMPTS[1], FULL)
    forward, tokens = cuda.loaded.forward, list(range(3, 3 + MOST_STEP_ROWS))
    assert forward.most_step_rows == MOST_STEP_ROWS
    together = forward.decode_rows([StepRow(token, cuda.session) for token in tokens]).copy()
    cuda.session.decoded([])
    for token, row in zip(tokens, together, strict=True):
        close(row, cuda.decode(token))
