"""The measures, on plain arrays in float64. Logarithms are natural; losses are in nats per token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.schedule import Span, spans

Float64 = NDArray[np.float64]


def losses(logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> Float64:
    """Losses of the next tokens [rows], from the logits [rows, vocab] before them: float64 [rows].

    Exponentials in float32, sums in float64: as exact as float32 logits, in a fifth of the time.
    """
    top = logits.max(axis=1, keepdims=True)
    sums = np.exp(logits - top).sum(axis=1, dtype=np.float64)
    chosen = logits[np.arange(len(tokens)), tokens].astype(np.float64)
    return np.asarray(np.log(sums) - (chosen - top[:, 0]))


def perplexity(nll: NDArray[Any]) -> float:
    """exp of the mean loss of tokens, nll [n]; infinite if it overflows."""
    mean = float(np.mean(nll, dtype=np.float64))
    return math.exp(mean) if mean < 700 else math.inf


def increase(nll: NDArray[Any], truth: NDArray[Any]) -> float:
    """Relative increase of the perplexity of the same tokens over full attention's: 0.015 is 1.5 %."""
    return perplexity(nll - truth) - 1.0


def divergence(truth: NDArray[Any], found: NDArray[Any]) -> Float64:
    """Kullback-Leibler divergence of each row from full attention's, both log-probabilities [rows, vocab]."""
    p, q = truth.astype(np.float64), found.astype(np.float64)
    return np.asarray((np.exp(p) * (p - q)).sum(axis=1))


def entropy(logs: NDArray[Any]) -> Float64:
    """For each row of log-probabilities [rows, vocab]."""
    wide = logs.astype(np.float64)
    return np.asarray(-(np.exp(wide) * wide).sum(axis=1))


def counted(nll: NDArray[Any], first: int) -> NDArray[Any]:
    """From losses nll [N - 1], whose entry t is of token t + 1, those of tokens at `first` or later."""
    return nll[max(first - 1, 0) :]


def buckets(nll: NDArray[Any], width: int) -> Iterator[tuple[Span, NDArray[Any]]]:
    """Losses nll [N - 1] by position: 0 … width - 1, and so on."""
    for positions in spans(len(nll) + 1, width):
        losses = nll[max(positions.start - 1, 0) : positions.stop - 1]
        if len(losses):
            yield positions, losses


def frequency_loss(tokens: Sequence[int] | NDArray[Any], vocabulary: int) -> float:
    """Mean loss of a predictor that only counts tokens, starting with none.

    After n tokens, u of them different, a token with count c has probability c / (n + u). All unseen tokens
    share the rest equally: u / (n + u), or everything at the beginning.
    """
    counts: dict[int, int] = {}
    loss = 0.0
    for read, token in enumerate(np.asarray(tokens).tolist()):
        known = len(counts)
        if token in counts:
            loss -= math.log(counts[token] / (read + known))
        else:
            loss -= math.log((known / (read + known) if read else 1.0) / (vocabulary - known))
        counts[token] = counts.get(token, 0) + 1
    return loss / len(tokens)


def evenly(first: int, stop: int, limit: int) -> NDArray[np.int64]:
    """At most `most` integers from `first` to `stop` - 1, spread as widely as possible."""
    count = max(min(limit, stop - first), 0)
    return np.unique(np.linspace(first, stop - 1, count).round().astype(np.int64))
