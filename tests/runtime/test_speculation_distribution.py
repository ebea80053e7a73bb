"""Sampled prompt lookup draws what the sampler would: a chi-squared test of many draws on a small vocabulary."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.answers.drafter import Drafter
from h2o_runtime.answers.events import TokenGenerated, alone
from h2o_runtime.answers.lookup import PromptLookup
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.answers.sampling import Sampler, Sampling
from h2o_runtime.execution.answer_steps import AnswerSteps, sampled_answer
from h2o_runtime.execution.reading import Watch

VOCAB, ANSWERS, TOKENS = 5, 100, 1000


class FakeSession:
    """Logits after a token depend on that token alone. A step's rows are given back as a store would have it."""

    def __init__(self, table: NDArray[np.float32]) -> None:
        self.table, self.length = table, 0
        self.spec = SimpleNamespace(context=1 << 30)
        self.store = SimpleNamespace(truncate=lambda rows: None)

    def stepping(self) -> AbstractContextManager[None]:
        return nullcontext()

    def decoded(self, tokens: list[int], ahead: int = 0) -> None:
        self.length += len(tokens)

    def keep_logits(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        return logits

    def step(self, tokens: Any) -> NDArray[np.float32]:
        return self.table[list(tokens)]


def drawn(table: NDArray[np.float32], seed: int) -> tuple[list[int], AnswerSteps]:
    session: Any = FakeSession(table)
    prompt = [0, 1, 2, 3, 4] * 8
    steps = AnswerSteps(session, Drafter([PromptLookup(prompt)]), most_rows=8)
    sampler = Sampler(Sampling(temperature=1.0, seed=seed), VOCAB)
    sampler.reset(prompt)
    run = sampled_answer(
        session, table[prompt[-1]], sampler, steps, Request(Prompt(tuple(prompt)), TOKENS), Watch()
    )
    tokens = [one.sampled.token for one in alone(run, session.step) if isinstance(one, TokenGenerated)]
    return [prompt[-1], *tokens], steps


def test_a_hundred_thousand_draws_have_the_samplers_distribution() -> None:
    draw = np.random.default_rng(4)
    # Each token is likely, not certain, to be followed by the next one: drafts come, and many are wrong.
    table = (draw.normal(size=(VOCAB, VOCAB)) + 2.5 * np.roll(np.eye(VOCAB), 1, axis=1)).astype(np.float32)
    counts = np.zeros((VOCAB, VOCAB))
    drafted = accepted = 0
    for seed in range(ANSWERS):
        tokens, steps = drawn(table, seed)
        np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
        drafted, accepted = drafted + steps.count.drafted, accepted + steps.count.accepted
    assert counts.sum() == ANSWERS * TOKENS
    assert 0 < accepted < drafted
    assert drafted > ANSWERS * TOKENS / 20
    wide = table.astype(np.float64)
    shares = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    expected = shares * counts.sum(axis=1, keepdims=True)
    squared = ((counts - expected) ** 2 / expected).sum()
    # 20 degrees of freedom: 45.3 is passed by one in a thousand. Seeds are fixed, so it always passes or never.
    assert squared < 45.3
