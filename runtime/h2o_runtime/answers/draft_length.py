"""How many tokens to draft: as many as give the most tokens in the time that drafts and their check take."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# Cost of a step with drafts beyond that of a step without, and of each drafted row, relative to a step of one row:
# about what docs/decode.md has measured.
DRAFT_COST, ROW_COST = 0.1, 0.2


class DraftLength(NamedTuple):
    """gain: tokens in the time of a step of one row, 1.0 without a draft."""

    gain: float
    tokens: int


def best_length(rate: Callable[[int], float], limit: int, cost: float = 0.0) -> DraftLength:
    """rate(i): how often the i-th drafted token comes, from 0 on, if those before it came. cost: of making one,
    relative to a step of one row.
    """
    best, tokens, all_came = DraftLength(1.0, 0), 1.0, 1.0
    for count in range(1, limit + 1):
        all_came *= rate(count - 1)
        tokens += all_came
        gain = tokens / (1 + DRAFT_COST + (ROW_COST + cost) * count)
        if gain > best.gain:
            best = DraftLength(gain, count)
    return best
