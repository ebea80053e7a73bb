"""What h2o-eval reads of a model: losses, continuations, and whether the model knows anything."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.cli.test_eval_metrics import FULL, SMALL
from tests.conftest import EXAMPLE
from tests.prefill import prefill_of

from h2o_cli.eval.contestants import Contestant, Kind
from h2o_cli.eval.measuring import BEGINNING, Extent, Measurer
from h2o_cli.eval.metrics import evenly, frequency_loss, judge
from h2o_cli.eval.needles import ChatFrame
from h2o_cli.eval.readings import read, read_on
from h2o_cli.eval.texts import Document
from h2o_runtime import Generator
from h2o_runtime.answers.sampling import log_probabilities
from h2o_runtime.policies.prefill import Query
from h2o_runtime.text import Tokenizer


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


def test_a_continuation_of_one_token(tiny_generator: Generator, heldout_ids: Any) -> None:
    one = read_on(tiny_generator, heldout_ids[:40], heldout_ids[40:41], FULL, np.array([0]))
    assert (one.nll.shape, one.likely.shape, len(one.logs)) == ((1,), (1,), 1)


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


def test_the_model_shows_on_a_short_text_whether_it_is_trained(
    tiny_generator: Generator, heldout_ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    each = tiny_generator.each_logits
    monkeypatch.setattr(
        tiny_generator, "each_logits", lambda ids, policy: (read.append(len(ids)), each(ids, policy))[1]
    )
    found = (Contestant("full", FULL, Kind.TRUTH), Contestant("h2o", Query(), Kind.RULE))
    for length in (2 * BEGINNING, 96):
        document = Document("a", np.resize(heldout_ids, length))
        extent = Extent(length, length // 4, 0, ("perplexity",), (), (), 1, "end")
        measurer = Measurer(tiny_generator, Tokenizer.load(EXAMPLE), (document,), found, extent, ChatFrame())
        assert measurer.sanity().problems == ()
    assert read == [BEGINNING, 96]
