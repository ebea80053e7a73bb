"""A model's predictions on a document under one configuration: of the document, and of its continuation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_cli.eval.metrics import Float64, divergence, losses
from h2o_runtime import Generator
from h2o_runtime.answers.sampling import log_probabilities
from h2o_runtime.policies.prefill import PrefillPolicy

IntArray = NDArray[np.int64]
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Reading:
    """Predictions of tokens that are known: after each of a document's N tokens, or of a continuation's.

    nll      float64: losses; of a document [N - 1], of the tokens at 1 and later, of a continuation [N]
    likely   int64 [N]: the likeliest tokens
    logs     float32 [K, vocab]: log-probabilities of some predictions
    """

    nll: Float64
    likely: IntArray
    logs: Float32

    def divergence(self, truth: Reading) -> float:
        """From full attention's, mean over the predictions with log-probabilities."""
        return float(divergence(truth.logs, self.logs).mean())

    def agreement(self, truth: Reading, first: int) -> float:
        """Share of rows from `first` on whose most likely token is full attention's."""
        return float((self.likely[first:] == truth.likely[first:]).mean())


def read(generator: Generator, ids: IntArray, policy: PrefillPolicy[Any], sampled: IntArray) -> Reading:
    """Losses of all tokens under a configuration, from an empty cache, and distributions of the sampled rows."""
    logits = (logits for _, logits in generator.each_logits(ids, policy))
    return _gathered(generator.model.vocab_size, logits, ids[1:], len(ids), sampled)


def read_on(
    generator: Generator,
    ids: IntArray,
    following: IntArray,
    policy: PrefillPolicy[Any],
    sampled: IntArray,
) -> Reading:
    """Predictions of the tokens `following` [N] after a prefill of `ids`; each sees everything before it.

    Every token is given, whatever the model would predict: this is how sparse prefill affects answers.
    """
    logits = _predictions(generator, ids, following, policy)
    return _gathered(generator.model.vocab_size, logits, following, len(following), sampled)


def _predictions(
    generator: Generator, ids: IntArray, following: IntArray, policy: PrefillPolicy[Any]
) -> Iterator[Float32]:
    """Logits before each of the tokens `following`, some rows at once."""
    yield generator.prefill(ids, policy, reuse=False)[None]
    given = following[:-1]
    if generator.spec.decoding.exact and generator.spec.cache.most_rows is None:
        if len(given):
            yield from (logits for _, logits in generator.decode_given(given))
    else:  # here a token's visible past depends on its decode step
        yield from (generator.decode(int(token))[None] for token in given)


def _gathered(
    vocabulary: int, each: Iterable[Float32], expected: IntArray, n: int, sampled: IntArray
) -> Reading:
    """each: logits [rows, vocab], n rows in all; expected: the tokens that come, of the last row perhaps none."""
    nll, likely = np.empty(len(expected)), np.empty(n, np.int64)
    logs = np.empty((len(sampled), vocabulary), np.float32)
    start = 0
    for logits in each:
        stop = start + len(logits)
        likely[start:stop] = logits.argmax(axis=1)
        known = expected[start:stop]
        nll[start : start + len(known)] = losses(logits[: len(known)], known)
        first, last = np.searchsorted(sampled, [start, stop])
        logs[first:last] = log_probabilities(logits[sampled[first:last] - start])
        start = stop
    return Reading(nll, likely, logs)
