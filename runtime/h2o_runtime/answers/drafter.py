"""Drafts the next tokens of an answer: those that its grammar forces, or those that its own text suggests."""

from __future__ import annotations

from collections.abc import Iterable

from h2o_runtime.answers.constraint import Constraint
from h2o_runtime.answers.lookup import PromptLookup


class Drafter:
    """For one answer."""

    def __init__(self, tokens: Iterable[int], constraint: Constraint | None = None) -> None:
        """tokens: of the conversation so far. constraint: the answer's; it accepts each token before `append`."""
        self._lookup, self._constraint = PromptLookup(tokens), constraint

    def append(self, token: int) -> None:
        """The generated token."""
        self._lookup.append(token)

    def draft(self, limit: int) -> list[int]:
        """Up to `most` tokens that are certain or likely enough to come next, all of which the constraint allows.
        Raises as `Constraint.allowed`.
        """
        suggested = self._lookup.draft(limit)
        if self._constraint is None:
            return suggested
        fitting = suggested[: self._constraint.fitting(suggested)]
        forced = list(self._constraint.forced()[:limit])
        return max(forced, fitting, key=len)  # the longer one begins with the shorter one
