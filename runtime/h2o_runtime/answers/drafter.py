"""Drafts the next tokens of an answer: those that its grammar forces, or those that its own text or the model's
draft layer suggests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from h2o_runtime.answers.constraint import Constraint

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


class DraftSource(Protocol):
    """Suggests next tokens for one answer, and learns how often they come."""

    def append(self, token: int) -> None:
        """The generated token."""

    def gain(self, limit: int) -> float:
        """Tokens in the time of a step of one row, if up to `limit` are drafted now; 1.0: it would draft none."""

    def draft(self, limit: int) -> list[int]:
        """Up to `limit` tokens that are likely enough to come next."""


class Drafter:
    """For one answer. Of several sources the one with the largest gain drafts."""

    def __init__(self, sources: Sequence[DraftSource], constraint: Constraint | None = None) -> None:
        """sources: they know the conversation so far. constraint: the answer's; it accepts each token before
        `append`.
        """
        self._sources, self._constraint = sources, constraint

    def append(self, token: int) -> None:
        """The generated token."""
        for source in self._sources:
            source.append(token)

    def draft(self, limit: int) -> list[int]:
        """Up to `limit` tokens that are certain or likely enough to come next, all of which the constraint allows.
        Raises as `Constraint.allowed`.
        """
        suggested = max(self._sources, key=lambda source: source.gain(limit)).draft(limit)
        if self._constraint is None:
            return suggested
        fitting = suggested[: self._constraint.fitting(suggested)]
        forced = list(self._constraint.forced()[:limit])
        return max(forced, fitting, key=len)  # the longer one begins with the shorter one
