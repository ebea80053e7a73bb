"""What h2o-eval reads of a model: losses, continuations, and whether the model knows anything."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.cli.test_eval_metrics import FULL, SMALL
from tests.prefill import prefill_of

from h2o_cli.eval.metrics import evenly, frequency_loss, judge
from h2o_cli.eval.readings import read, read_on
from h2o_runtime import Generator
from h2o_runtime.answers.sampling import log_probabilities


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
    assert reading.divergence(truth) > truth.divergence(truth) == 0.0
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
    assert sparse.divergence(truth) > 0


def test_a_model_that_knows_nothing_is_told(tiny_generator: Generator, heldout_ids: Any) -> None:
    ids = heldout_ids[:300]
    trained = read(tiny_generator, ids, FULL, evenly(10, 300, 20))
    assert judge(trained.nll, trained.logs, ids, tiny_generator.model.vocab_size).problems == ()
    told = judge(np.full(299, math.log(4096)), np.log(np.full((20, 4096), 1 / 4096)), ids, 4096)
    assert told.perplexity == pytest.approx(4096)
    assert "near to knowing nothing" in told.problems[0]
    assert "uniform" in told.problems[1]
    context_free = np.full(299, frequency_loss(ids, 4096) + 0.01)
    assert "does not read what stands before" in judge(context_free, trained.logs, ids, 4096).problems[0]
    (told_of_text,) = judge(trained.nll, trained.logs, ids * 0, 4096).problems
    assert told_of_text.startswith("the first text repeats itself")
