"""What a model makes of a document under one configuration: losses, distributions, and a decoded continuation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_cli.eval.metrics import Float64, divergence, log_probabilities, losses
from h2o_runtime import Generator, PrefillConfig
from h2o_runtime.execution.forward import Watch

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Reading:
    """A document of N tokens read whole.

    nll      float64 [N - 1]: entry t is of the token at t + 1
    likely   int64 [N]: the likeliest token after each
    sampled  int64 [K]: rows whose whole distribution is kept
    logs     float32 [K, vocab]: its log-probabilities
    """

    nll: Float64
    likely: IntArray
    sampled: IntArray
    logs: NDArray[np.float32]

    def divergence(self, truth: Reading) -> Float64:
        """Of the sampled rows from the truth's, [K]."""
        return divergence(truth.logs, self.logs)

    def agreement(self, truth: Reading, first: int) -> float:
        """Share of rows from `first` on whose likeliest token is the truth's."""
        return float((self.likely[first:] == truth.likely[first:]).mean())


def read(
    generator: Generator, ids: IntArray, config: PrefillConfig, sampled: IntArray, watch: Watch | None = None
) -> Reading:
    """Losses of all tokens under a configuration, from an empty cache, and distributions of the sampled rows."""
    n, vocabulary = len(ids), generator.model.vocab_size
    nll, likely = np.empty(n - 1), np.empty(n, np.int64)
    logs = np.empty((len(sampled), vocabulary), np.float32)
    for rows, logits in generator.each_logits(ids, config, watch):
        likely[rows.start : rows.stop] = logits.argmax(axis=1)
        known = ids[rows.start + 1 : rows.stop + 1]
        nll[rows.start : rows.start + len(known)] = losses(logits[: len(known)], known)
        first, last = np.searchsorted(sampled, [rows.start, rows.stop])
        logs[first:last] = log_probabilities(logits[sampled[first:last] - rows.start])
    return Reading(nll, likely, sampled, logs)


def continuation(
    generator: Generator,
    ids: Sequence[int] | IntArray,
    following: Sequence[int] | IntArray,
    config: PrefillConfig,
    watch: Watch | None = None,
) -> Float64:
    """Losses of tokens that are decoded one by one behind a prefill of `ids`, float64 [len(following)].

    Every token is given, whatever the model would have said: this is what users get of an answer.
    """
    logits: Any = generator.prefill(ids, config, watch, reuse=False)
    nll = np.empty(len(following))
    for index, token in enumerate(following):
        nll[index] = -log_probabilities(logits[None])[0, token]
        if index + 1 < len(following):
            logits = generator.decode(int(token))
    return nll
