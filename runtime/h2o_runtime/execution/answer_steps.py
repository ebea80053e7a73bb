"""The decode steps of one answer: several tokens each, where the conversation's own text says what may come.

Speculation is exact here by construction: drafted tokens only decide which rows a step has beside the one that it
must have. Each token is sampled from logits that are bit for bit those of a step of its own, and with the same
random numbers, penalties and grammar: a draft is accepted if the sampler draws it. That is the rejection rule of
speculative sampling (Leviathan et al., 2023) for drafts without a distribution of their own: one is accepted with
the probability that the sampler gives it, and one that is not is followed by a draw from all others. So a seed
gives the same answer with drafts and without.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from h2o_runtime.answers.events import StepWanted
from h2o_runtime.answers.lookup import Drafter
from h2o_runtime.execution.forward import Forward
from h2o_runtime.execution.step_rows import StepRow
from h2o_runtime.sessions.session import Float32, Session

MOST_DRAFTED = 7  # tokens of a step, beside its own


@dataclass
class DraftCount:
    """Tokens of an answer that were drafted, and those of them that came."""

    drafted: int = 0
    accepted: int = 0


class AnswerSteps:
    """Of one session, from the prompt's end on. `count` tells what became of drafts."""

    def __init__(self, session: Session, drafter: Drafter | None, most_rows: int) -> None:
        """drafter: knows the session's tokens. None: every token has a step of its own. most_rows: of a step."""
        self.count = DraftCount()
        self._session, self._drafter, self._most = session, drafter, min(MOST_DRAFTED, most_rows - 1)
        self._ahead: list[int] = []  # tokens behind the session's, which the last step had too
        self._rows: Float32 | None = None  # its logits from the session's last token on

    def after(self, token: int, wanted: int) -> Generator[StepWanted, Float32 | None, Float32]:
        """Append a token → logits float32 [vocab] after it, read-only. Asks for a step where there must be one.

        wanted: how many tokens may still be sampled, 1 at least.
        """
        if self._drafter is not None:
            self._drafter.append(token)
        if self._ahead and self._ahead[0] == token:
            assert self._rows is not None
            self.count.accepted += 1
            self._ahead, self._rows = self._ahead[1:], self._rows[1:]
        else:
            self._ahead = self._draft(wanted)
            self._rows = yield StepWanted((token, *self._ahead))
        self._session.decoded([token], ahead=len(self._ahead))
        assert self._rows is not None
        return self._session.keep_logits(self._rows[0])

    def close(self) -> None:
        """Give back what is behind the session's tokens."""
        if self._ahead:
            self._session.store.truncate(self._session.length)
            self._ahead = []

    def _draft(self, wanted: int) -> list[int]:
        if self._drafter is None:
            return []
        room = self._session.spec.context - self._session.length - 1
        draft = self._drafter.draft(min(self._most, wanted - 1, room))
        self.count.drafted += len(draft)
        return draft


def decode_together(forward: Forward, steps: Sequence[tuple[Session, Sequence[int]]]) -> Iterator[Float32]:
    """A step of each of several sessions with rows of these tokens → logits of each, [rows, vocab], which stay.

    What one gets does not depend on the others. The sessions' tokens are left to the caller. Raises BackendError.
    """
    rest = list(steps)
    while rest:
        ends = accumulate(len(tokens) for _, tokens in rest)
        fitting = sum(1 for end in ends if end <= forward.most_step_rows)
        some, rest = rest[:fitting], rest[fitting:]
        rows = [StepRow(token, session) for session, tokens in some for token in tokens]
        logits, begin = forward.decode_rows(rows).copy(), 0
        for _, tokens in some:
            yield logits[begin : begin + len(tokens)]
            begin += len(tokens)
