"""Reads the prompts of one session: what it or the pool holds of a prompt is not read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from h2o_runtime.answers.events import PiecewiseRead
from h2o_runtime.caches.reuse import ShortDifference, plan_reuse, same_arithmetic, shared_prefix
from h2o_runtime.devices.timings import PrefillTimer
from h2o_runtime.execution.forward import Forward
from h2o_runtime.execution.reading import Reading, Watch
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.schedule import Span
from h2o_runtime.sessions.pool import SessionPool, SharedPrompt
from h2o_runtime.sessions.session import Float32, IntArray, Session


class PromptReader:
    """For one session and the pool where it waits.

    reused      tokens that the last prompt found in the cache
    difference  why it did not find most of the others, if they are few
    timer       tells where the time of its reading went
    """

    def __init__(self, forward: Forward, session: Session, pool: SessionPool) -> None:
        self._forward, self._session, self._pool = forward, session, pool
        self.reused = 0
        self.difference: ShortDifference | None = None
        self.timer: Callable[[], PrefillTimer] = PrefillTimer

    def was_read(self, reused: int, timer: Callable[[], PrefillTimer]) -> None:
        """A prompt was read."""
        self.reused, self.timer = reused, timer

    def keeps(self, tokens: IntArray, policy: PrefillPolicy[Any]) -> int:
        """The number of the prompt's tokens that the session already holds."""
        if self._answers(tokens, policy):
            return len(tokens)
        return plan_reuse(self._session.known, self._session.origin, tokens, policy).length

    def finds(self, tokens: IntArray, policy: PrefillPolicy[Any]) -> int:
        """As `keeps`, and what a session that waits or is live elsewhere holds."""
        return max(self.keeps(tokens, policy), self._pool.offers(self._session, tokens, policy))

    def read(
        self,
        tokens: IntArray,
        policy: PrefillPolicy[Any],
        watch: Watch,
        reuse: bool = True,
        prompt_piece: int | None = None,
        shared: SharedPrompt | None = None,
    ) -> PiecewiseRead[Float32]:
        """Read a whole prompt, in pieces of about `prompt_piece` tokens if the policy allows → the logits after its
        last token, float32 [vocab].

        Without `reuse` the prompt runs from its first token. shared: of all answers to it. Raises Cancelled,
        BackendError, ConfigError.
        """
        session, self.difference = self._session, None
        if shared is not None and shared.session is not None:
            self._pool.begin_answer(shared, session)
        elif not reuse:
            self._pool.set_aside(session)
            session.reset()
        else:
            self._pool.change(session, tokens, policy)
        if self._answers(tokens, policy):
            self.was_read(len(tokens), PrefillTimer(policy.phases).read)
            assert session.logits is not None
            if shared is not None:
                self._pool.keep(shared, session)
            return session.logits
        plan = plan_reuse(session.known, session.origin, tokens, policy)
        if reuse:
            self.difference = self._pool.difference(tokens, policy, plan.length)
        reading = Reading(self._forward, session, tokens, policy, plan, watch, prompt_piece)
        self.reused = plan.length
        rows = min(self._forward.answered_rows, reading.last)
        yield from reading.run(needed=-rows)
        logits = session.keep_logits(self._forward.logits(Span(reading.last - rows, reading.last))[-1])
        self._forward.keep_hidden(session, session.length - rows, rows)
        self.timer = reading.read_timer
        if shared is not None:
            self._pool.keep(shared, session)
        return logits

    def _answers(self, tokens: IntArray, policy: PrefillPolicy[Any]) -> bool:
        """Whether the session holds exactly this prompt with its logits. After sparsely computed tokens, an
        exact request does not accept them.
        """
        session = self._session
        exact = session.origin.exact_rows(session.length) == session.length
        return (
            session.logits is not None
            and (exact or not policy.exact)
            and same_arithmetic(session.origin.policy, policy)
            and len(tokens) == session.length == shared_prefix(session.known, tokens)
        )
