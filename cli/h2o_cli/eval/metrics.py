"""The measures, on plain arrays in float64. Logarithms are natural; losses are in nats per token."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.schedule import Span, spans

Float64 = NDArray[np.float64]
NEAR = 0.9  # of the loss of a predictor that knows nothing
UNIFORM = 0.98  # of the entropy of a uniform predictor
REPEATED = 2.0  # perplexity by counting alone, of a text of a few tokens again and again; prose has hundreds
RUN = 16  # tokens that are judged together, because losses of neighbours depend on each other
WORST = 3  # runs that are shown


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


def standard_error(more: Float64) -> float | None:
    """Of the mean of losses' differences [N], from means of runs; None of less than two runs."""
    means = [float(run.mean()) for run in _runs(more)]
    return statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None


def worst_runs(more: Float64) -> list[slice]:
    """The runs of tokens whose losses rise most, among those whose losses rise."""
    sums = np.array([run.sum() for run in _runs(more)])
    order = sums.argsort()[::-1][:WORST]
    return [slice(RUN * i, RUN * (i + 1)) for i in order.tolist() if sums[i] > 0]


def _runs(more: Float64) -> Iterator[Float64]:
    for start in range(0, len(more) - RUN + 1, RUN):
        yield more[start : start + RUN]


def evenly(first: int, stop: int, limit: int) -> NDArray[np.int64]:
    """At most `limit` integers from `first` to `stop` - 1, spread as widely as possible."""
    count = max(min(limit, stop - first), 0)
    return np.unique(np.linspace(first, stop - 1, count).round().astype(np.int64))


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


@dataclass(frozen=True)
class Sanity:
    """What full attention makes of the beginning of the first text.

    perplexity  of all its tokens
    vocabulary  what the perplexity is of who gives every token the same probability
    frequencies what it is of who only counts how often each token came so far
    certainty   1 - entropy of its predictions / that of a uniform one, mean
    problems    sentences without an end; none where the model has learnt something and the text says something
    """

    perplexity: float
    vocabulary: int
    frequencies: float
    certainty: float
    problems: tuple[str, ...]


def judge(nll: Float64, logs: NDArray[Any], ids: NDArray[np.int64], vocabulary: int) -> Sanity:
    """Can there be any loss? A model that predicts nothing loses nothing under any policy, nor does a text that
    repeats itself.

    nll, logs: full attention's losses of the text ids [N], and log-probabilities of some of its predictions
    """
    of_text, context_free = perplexity(nll), math.exp(frequency_loss(ids, vocabulary))
    uniform = math.log(vocabulary)
    certainty = 1.0 - float(np.mean(entropy(logs))) / uniform
    problems = []
    if context_free < REPEATED:
        problems.append(
            f"the first text repeats itself: who only counts how often each token came so far has the perplexity "
            f"{context_free:,.1f}"
        )
        return Sanity(of_text, vocabulary, context_free, certainty, tuple(problems))
    if np.mean(nll) >= NEAR * uniform:
        problems.append(
            f"its perplexity is {of_text:,.0f} with {vocabulary:,} tokens in its vocabulary, which is near to "
            "knowing nothing"
        )
    elif of_text >= context_free:
        problems.append(
            f"its perplexity is {of_text:,.1f}, and who only counts how often each token came so far has "
            f"{context_free:,.1f}: it does not read what stands before"
        )
    if certainty <= 1.0 - UNIFORM:
        problems.append("its predictions are all but uniform")
    told = tuple(f"this model looks untrained: {problem}" for problem in problems)
    return Sanity(of_text, vocabulary, context_free, certainty, told)
