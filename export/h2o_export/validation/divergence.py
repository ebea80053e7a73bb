"""How far predictions of the next token are from the checkpoint's: what a reader of an answer would notice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.answers.sampling import log_probabilities

LIMIT = (
    0.5  # nats a token; integer weights of a sound export cost a fifth of it at most, garbage several nats
)


def mean_divergence(truth: NDArray[np.floating], found: NDArray[np.floating]) -> float:
    """Kullback-Leibler divergence of `found` from `truth`, logits [n, vocab]: the mean of all rows, in nats."""
    each = [_divergence(p, q) for p, q in zip(truth, found, strict=True)]  # one row in float64 at a time
    return float(np.mean(each))


def _divergence(truth: NDArray[np.floating], found: NDArray[np.floating]) -> float:
    with np.errstate(invalid="ignore"):  # logits beyond float16's range: the result is no number either
        p, q = log_probabilities(truth[None]), log_probabilities(found[None])
    return float((np.exp(p) * (p - q)).sum())
