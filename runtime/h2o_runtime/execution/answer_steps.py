"""One answer: sample a token, take a step, and so on to the end. A step has several tokens if a grammar forces the
next ones, or the conversation's own text suggests them.

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
from h2o_runtime.answers.events import Finished, GenerationEvent, Run, StepWanted, TokenGenerated
from h2o_runtime.answers.request import Request
from h2o_runtime.answers.sampling import Sampler
from h2o_runtime.errors import Cancelled
from h2o_runtime.execution.forward import Forward
from h2o_runtime.execution.reading import Watch
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


def sampled_answer(
    session: Session,
    logits: Float32,
    sampler: Sampler,
    steps: AnswerSteps,
    request: Request,
    watch: Watch,
) -> Run[GenerationEvent]:
    """The tokens that the request wants behind the session's; `logits` [vocab] are those of the first.

    Yields a TokenGenerated a token and one Finished, and asks for every step. Raises Cancelled between two tokens.
    The sampler has seen the prompt. `steps` are closed in the end.
    """
    constraint, stops = request.constraint, frozenset(request.stop_tokens)
    limit, produced = request.most_tokens(session.spec.context), 0
    try:
        while produced < limit:
            sampled = sampler.sample(logits, constraint.allowed() if constraint else None)
            if sampled.token in stops:
                yield Finished("stop", produced)
                return
            sampler.accept(sampled.token)
            if constraint:
                constraint.accept(sampled.token)
            produced += 1
            yield TokenGenerated(sampled)
            if session.length >= session.spec.context or produced == limit:
                break
            if watch.cancelled():
                raise Cancelled("generation was stopped")
            logits = yield from steps.after(sampled.token, limit - produced)
    finally:
        steps.close()
    yield Finished("length", produced)
