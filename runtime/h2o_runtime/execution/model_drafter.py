"""Drafts the next tokens of one answer with the model's draft layer.

The layer has rows of the last tokens of the prompt's last piece, and of the answer's. So sessions, slots and saved
caches know nothing of them, and a prompt costs no more than the head on a few rows.
"""

from __future__ import annotations

import numpy as np

from h2o_runtime.answers.drafter import DraftLength, DraftSource, best_length
from h2o_runtime.answers.lookup import PromptLookup
from h2o_runtime.execution.draft_layer import READ, DraftLayer
from h2o_runtime.execution.forward import Forward
from h2o_runtime.names import Speculation
from h2o_runtime.sessions.session import Session

PRIOR, PRIOR_RATE = 4.0, 0.9  # weight of the prior acceptance rate, in tests, and the rate
MEMORY = 0.9  # factor of a test's weight with each later test
# Factor of a rate's distance from the prior with each token that was not drafted, so that drafts come again.
RETURN = 0.98


class DraftAcceptance:
    """How often a drafted token was the right one after those before it were, by its place; recent tests count
    more."""

    def __init__(self, most: int) -> None:
        self._tests = np.full(most, PRIOR)
        self._hits = np.full(most, PRIOR * PRIOR_RATE)

    def seen(self, place: int, came: bool) -> None:
        self._tests[place] = MEMORY * self._tests[place] + 1
        self._hits[place] = MEMORY * self._hits[place] + came

    def unseen(self) -> None:
        """A token came that was not drafted."""
        self._hits += (1 - RETURN) * (PRIOR_RATE * self._tests - self._hits)

    def rate(self, place: int) -> float:
        return float(self._hits[place] / self._tests[place])


class ModelDrafter:
    """A `DraftSource`. Each drafted token is compared with the one that comes, whether or not it was verified."""

    def __init__(self, layer: DraftLayer, session: Session, most: int) -> None:
        """The session has read its prompt. most: drafted tokens at once."""
        self._layer, self._session = layer, session
        self._rows = layer.new_rows()
        self._tokens: list[int] = []  # that the layer has not read yet
        self._hidden = np.zeros((READ, session.spec.model.hidden_size), np.float32)
        self._ahead: list[int] = []
        self._place = 0  # of the first of them in their draft
        self._acceptance = DraftAcceptance(most)
        for row in range(session.hidden.first, session.length - 1):
            self._take(row, int(session.known[row + 1]))

    def append(self, token: int) -> None:
        if self._ahead:
            came = self._ahead[0] == token
            self._acceptance.seen(self._place, came)
            self._ahead, self._place = self._ahead[1:] if came else [], self._place + 1
        else:
            self._acceptance.unseen()
        self._take(self._session.length - 1, token)

    def gain(self, limit: int) -> float:
        return self._length(limit).gain

    def draft(self, limit: int) -> list[int]:
        count = self._length(limit).tokens
        self._ahead, self._place = [], 0
        if count:
            tokens, self._tokens = self._tokens, []
            self._ahead = self._layer.draft(self._rows, tokens, self._hidden[: len(tokens)], count)
        return self._ahead

    def _length(self, limit: int) -> DraftLength:
        possible = min(limit, len(self._hidden)) if self._tokens else 0
        return best_length(self._acceptance.rate, possible, self._layer.cost)

    def _take(self, row: int, token: int) -> None:
        """`token` came after a row of the session."""
        hidden = self._session.hidden.of(row)
        if hidden is None:
            return
        if len(self._tokens) == READ:
            self._layer.read(self._rows, self._tokens, self._hidden)
            self._tokens = []
        self._hidden[len(self._tokens)] = hidden
        self._tokens.append(token)


def draft_sources(
    chosen: Speculation, forward: Forward, session: Session, tokens: list[int]
) -> list[DraftSource]:
    """What drafts an answer to these tokens, which the session has read; nothing if `chosen` is off."""
    sources: list[DraftSource] = []
    if chosen in ("auto", "lookup"):
        sources.append(PromptLookup(tokens))
    if chosen in ("auto", "mtp"):
        assert forward.drafting is not None
        sources.append(ModelDrafter(forward.drafting, session, forward.most_rows_of(session) - 1))
    return sources
