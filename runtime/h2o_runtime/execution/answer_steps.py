"""The decode steps of one answer. A step has several tokens if a grammar forces the next ones, or the
conversation's own text suggests them.

Speculation is exact by construction: drafted tokens only add rows to a step. Each token is sampled from the
same logits, bit for bit, as in a step of its own, with the same random numbers, penalties and grammar. A
draft is accepted if the sampler draws it. This is the rejection rule of speculative sampling (Leviathan et
al., 2023) for drafts without a distribution: a draft is accepted with the sampler's probability, and a
rejected one is followed by a draw from all others. A forced token is the only one that can be drawn. So a seed
gives the same answer with and without drafts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from h2o_runtime.answers.drafter import Drafter
from h2o_runtime.answers.events import StepWanted
from h2o_runtime.execution.forward import Forward
from h2o_runtime.execution.step_rows import StepRow
from h2o_runtime.sessions.session import Float32, Session


@dataclass
class DraftCount:
    """Drafted tokens of an answer, and the accepted ones among them."""

    drafted: int = 0
    accepted: int = 0


class AnswerSteps:
    """For one session, from the prompt's end on. `count` has the results of drafting."""

    def __init__(self, session: Session, drafter: Drafter | None, most_rows: int) -> None:
        """drafter: knows the session's tokens. None: every token has its own step. most_rows: of a step."""
        self.count = DraftCount()
        self._session, self._drafter, self._most = session, drafter, most_rows - 1
        self._ahead: list[int] = []  # drafted tokens after the session's, in the last step
        self._rows: Float32 | None = None  # its logits from the session's last token on

    def after(self, token: int, wanted: int) -> Generator[StepWanted, Float32 | None, Float32]:
        """Append a token → logits float32 [vocab] after it, read-only. Requests a step if the last one does
        not have them.

        wanted: how many tokens may still be sampled, at least 1. Raises as `Drafter.draft`.
        """
        if self._drafter is not None:
            self._drafter.append(token)
        if self._ahead and self._ahead[0] == token:
            assert self._rows is not None
            self.count.accepted += 1
            self._ahead, self._rows = self._ahead[1:], self._rows[1:]
        else:
            self.close()
            self._ahead = self._draft(wanted)
            with self._session.stepping():
                self._rows = yield StepWanted((token, *self._ahead))
        self._session.decoded([token], ahead=len(self._ahead))
        assert self._rows is not None
        return self._session.keep_logits(self._rows[0])

    def close(self) -> None:
        """Drop the rows after the session's tokens."""
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
    """One step of several sessions with rows of these tokens → logits of each, [rows, vocab], owned by the
    caller.

    A session's result does not depend on the others. The caller updates the sessions' tokens. Raises
    BackendError.
    """
    rest = list(steps)
    while rest:
        ends = accumulate(len(tokens) for _, tokens in rest)
        fitting = sum(1 for end in ends if end <= forward.most_step_rows)
        step, rest = rest[:fitting], rest[fitting:]
        rows = [StepRow(token, session) for session, tokens in step for token in tokens]
        logits, begin = forward.decode_rows(rows).copy(), 0
        for _, tokens in step:
            yield logits[begin : begin + len(tokens)]
            begin += len(tokens)
