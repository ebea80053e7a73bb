"""How well a text is predicted: what rounding of weights costs, in one number that others publish too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from h2o_runtime.schedule import Span, spans

ROWS = 32  # whose logits are in memory at once
WARNING = 0.03  # from this loss on a smaller one is worth another export


def mean_loss(logits: Callable[[Span], Tensor], ids: Sequence[int]) -> float:
    """Mean negative log-likelihood of a text's tokens, each after those before it, in nats.

    logits: of some rows, [n, vocab]; the text has two tokens at least
    """
    total = 0.0
    for span in spans(len(ids) - 1, ROWS):
        next_tokens = torch.tensor(ids[span.start + 1 : span.stop + 1])
        total += float(cross_entropy(logits(span).float(), next_tokens, reduction="sum"))
    return total / (len(ids) - 1)


def loss_of_perplexity(found: float, truth: float) -> float:
    """By what share the perplexity exceeds the truth's, from both mean losses."""
    return math.expm1(found - truth)
