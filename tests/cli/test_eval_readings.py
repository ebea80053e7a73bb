"""What h2o-eval reads of a model: losses, continuations, and whether the model knows anything."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cli.test_eval_metrics import FULL, SMALL
from tests.prefill import prefill_of

from h2o_cli.eval.metrics import (
    evenly,
    frequency_loss,
    losses,
)
from h2o_cli.eval.readings import Reading, read, read_on, read_up_to
from h2o_cli.eval.sanity import judge
from h2o_runtime import Generator
from h2o_runtime.answers.log_probabilities import log_probabilities


def test_a_reading_is_what_the_generator_says(tiny_generator: Generator, heldout_ids: Any) -> None:
    ids, config = heldout_ids[:200], prefill_of(**SMALL)
    sampled = evenly(50, 200, 7)
    reading = read(tiny_generator, ids, config, sampled)
    np.testing.assert_allclose(-reading.nll, tiny_generator.logprobs(ids, config), atol=1e-5)
    np.testing.assert_allclose(np.exp(reading.logs.astype(np.float64)).sum(axis=1), 1.0, rtol=1e-5)
    last = tiny_generator.prefill(ids, config, reuse=False)
    np.testing.assert_allclose(reading.logs[-1], log_probabilities(last[None])[0], atol=1e-4)
    assert reading.likely[-1] == last.argmax()
    truth = read(tiny_generator, ids, FULL, sampled)
    assert (reading.divergence(truth) > 0).any()
    assert truth.divergence(truth).max() == 0.0
    assert truth.agreement(truth, 50) == 1.0 > reading.agreement(truth, 50)


def test_a_continuation_is_what_decode_makes_of_it(tiny_generator: Generator, heldout_ids: Any) -> None:
    ids, config, sampled = heldout_ids[:160], prefill_of(**SMALL), np.array([0, 7, 19])
    whole = -tiny_generator.logprobs(ids, FULL)[139:]
    truth = read_on(tiny_generator, ids[:140], ids[140:], FULL, sampled)
    np.testing.assert_allclose(truth.nll, whole, atol=1e-3)
    sparse = read_on(tiny_generator, ids[:140], ids[140:], config, sampled)
    logits = [tiny_generator.prefill(ids[:140], config, reuse=False)]
    logits += [tiny_generator.decode(int(token)) for token in ids[140:-1]]
    logs = log_probabilities(np.array(logits))
    np.testing.assert_allclose(sparse.nll, -logs[np.arange(20), ids[140:]], atol=1e-3)
    np.testing.assert_array_equal(sparse.likely, logs.argmax(axis=1))
    np.testing.assert_allclose(sparse.logs, logs[sampled], atol=1e-3)
    assert sparse.divergence(truth).max() > 0


def test_a_continuation_of_one_token(tiny_generator: Generator, heldout_ids: Any) -> None:
    one = read_on(tiny_generator, heldout_ids[:40], heldout_ids[40:41], FULL, np.array([0]))
    assert (one.nll.shape, one.likely.shape, len(one.logs)) == ((1,), (1,), 1)


def test_a_token_behind_a_prompt_that_ends_before_it(tiny_generator: Generator, heldout_ids: Any) -> None:
    """As of prompts that are read from their first token, and under full attention as inside one long prompt."""
    ids, config, at = (
        heldout_ids[:160],
        prefill_of(**SMALL, tile=16),
        np.array([20, 63, 64, 130, 158]),
    )
    fresh = [
        losses(tiny_generator.prefill(ids[: end + 1], config, reuse=False)[None], ids[end + 1 : end + 2])[0]
        for end in at
    ]
    found = read_up_to(tiny_generator, ids, at, config)
    np.testing.assert_allclose(found, fresh, atol=1e-4)
    inside = read(tiny_generator, ids, config, at).nll[at]
    assert np.abs(found - inside)[2:].max() > 1e-3  # later rows of a tile choose, too
    exact = read_up_to(tiny_generator, ids, at, FULL)
    np.testing.assert_allclose(exact, read(tiny_generator, ids, FULL, at).nll[at], atol=1e-4)


def test_a_model_that_knows_nothing_is_told(tiny_generator: Generator, heldout_ids: Any) -> None:
    ids = heldout_ids[:300]
    trained = read(tiny_generator, ids, FULL, evenly(10, 300, 20))
    assert judge(trained, ids, tiny_generator.model.vocab_size).problems == ()
    nothing = np.log(np.full((20, 4096), 1 / 4096))
    uniform = Reading(np.full(299, math.log(4096)), trained.likely, trained.sampled, nothing)
    told = judge(uniform, ids, 4096)
    assert told.perplexity == pytest.approx(4096)
    assert "near to knowing nothing" in told.problems[0]
    assert "uniform" in told.problems[1]
    context_free = replace(trained, nll=np.full(299, frequency_loss(ids, 4096) + 0.01))
    assert "does not read what stands before" in judge(context_free, ids, 4096).problems[0]
    assert [told[:29] for told in judge(trained, ids * 0, 4096).problems] == ["the first text repeats itself"]
