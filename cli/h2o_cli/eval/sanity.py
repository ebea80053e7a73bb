"""Can there be any loss? A model that predicts nothing loses nothing under any policy, nor does a text that repeats
itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from h2o_cli.eval.metrics import Float64, entropy, frequency_loss, perplexity
from h2o_cli.eval.readings import IntArray, Reading

NEAR = 0.9  # of the loss of a predictor that knows nothing
UNIFORM = 0.98  # of the entropy of a uniform predictor
REPEATED = 2.0  # perplexity by counting alone, of a text of a few tokens again and again; prose has hundreds


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


def judge(truth: Reading, ids: IntArray, vocabulary: int) -> Sanity:
    """Look at full attention's reading of a text [N]. If the model knows nothing, or the text repeats a few
    tokens, a sparse policy cannot do harm.
    """
    of_text, context_free = perplexity(truth.nll), math.exp(frequency_loss(ids, vocabulary))
    uniform = math.log(vocabulary)
    certainty = 1.0 - float(np.mean(_entropies(truth))) / uniform
    if context_free < REPEATED:
        problem = (
            f"the first text repeats itself: who only counts how often each token came so far has the perplexity "
            f"{context_free:,.1f}"
        )
        return Sanity(of_text, vocabulary, context_free, certainty, (problem,))
    problems = []
    if np.mean(truth.nll) >= NEAR * uniform:
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
    return Sanity(
        of_text,
        vocabulary,
        context_free,
        certainty,
        tuple(f"this model looks untrained: {each}" for each in problems),
    )


def _entropies(truth: Reading) -> Float64:
    return entropy(truth.logs) if len(truth.logs) else np.zeros(1)
