"""A model's predictions on a document under one configuration: of the document, and of its continuation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_cli.eval.metrics import Float64, divergence, losses
from h2o_runtime import Generator
from h2o_runtime.answers.log_probabilities import log_probabilities
from h2o_runtime.policies.prefill import PrefillPolicy

IntArray = NDArray[np.int64]
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Reading:
    """Predictions of tokens that are known: after each of a document's N tokens, or of a continuation's.

    nll      float64: losses; of a document [N - 1], of the tokens at 1 and later, of a continuation [N]
    likely   int64 [N]: the likeliest tokens
    sampled  int64 [K]: predictions whose whole distribution is kept
    logs     float32 [K, vocab]: its log-probabilities
    """

    nll: Float64
    likely: IntArray
    sampled: IntArray
    logs: NDArray[np.float32]

    def divergence(self, truth: Reading) -> Float64:
        """For the sampled rows, from full attention's, [K]."""
        return divergence(truth.logs, self.logs)

    def agreement(self, truth: Reading, first: int) -> float:
        """Share of rows from `first` on whose most likely token is full attention's."""
        return float((self.likely[first:] == truth.likely[first:]).mean())


def read(
    generator: Generator,
    ids: IntArray,
    policy: PrefillPolicy[Any],
    sampled: IntArray,
) -> Reading:
    """Losses of all tokens under a configuration, from an empty cache, and distributions of the sampled
    rows.
    """
    n, vocabulary = len(ids), generator.model.vocab_size
    nll, likely = np.empty(n - 1), np.empty(n, np.int64)
    logs = np.empty((len(sampled), vocabulary), np.float32)
    for rows, logits in generator.each_logits(ids, policy):
        likely[rows.start : rows.stop] = logits.argmax(axis=1)
        known = ids[rows.start + 1 : rows.stop + 1]
        nll[rows.start : rows.start + len(known)] = losses(logits[: len(known)], known)
        first, last = np.searchsorted(sampled, [rows.start, rows.stop])
        logs[first:last] = log_probabilities(logits[sampled[first:last] - rows.start])
    return Reading(nll, likely, sampled, logs)


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
    n = len(following)
    nll, likely = np.empty(n), np.empty(n, np.int64)
    logs = np.empty((len(sampled), generator.model.vocab_size), np.float32)
    done = 0
    for logits in _predictions(generator, ids, following, policy):
        stop = done + len(logits)
        likely[done:stop] = logits.argmax(axis=1)
        nll[done:stop] = losses(logits, following[done:stop])
        first, last = np.searchsorted(sampled, [done, stop])
        logs[first:last] = log_probabilities(logits[sampled[first:last] - done])
        done = stop
    return Reading(nll, likely, sampled, logs)


def read_up_to(generator: Generator, ids: IntArray, at: IntArray, policy: PrefillPolicy[Any]) -> Float64:
    """Losses [K] of the tokens behind the positions `at` [K], rising, each of a prompt that ends there.

    Nothing that a prediction rests on depends on later tokens, as it may inside a prompt. The longest prompt is
    read first: the others go back from it as far as the policy must.
    """
    nll = np.empty(len(at))
    generator.reset()
    for i in reversed(range(len(at))):
        position = int(at[i])
        logits = generator.prefill(ids[: position + 1], policy)
        nll[i] = losses(logits[None], ids[position + 1 : position + 2])[0]
    return nll


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
