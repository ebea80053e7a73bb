"""Reads a prompt into the cache: at once, or in pieces between which other runs continue. A caller can follow the
work, and stop it.

A piece leaves nothing in the shared buffers: all that the next piece needs is in the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from h2o_runtime.answers.events import PromptPieceRead
from h2o_runtime.caches.reuse import Prefix, Provenance, Reuse
from h2o_runtime.devices.timings import PrefillTimer, Stopwatch
from h2o_runtime.errors import Cancelled
from h2o_runtime.execution.forward import Forward, PromptRun
from h2o_runtime.policies.prefill import PrefillPolicy, PromptPiece
from h2o_runtime.policies.prefill.full import Full
from h2o_runtime.schedule import Span
from h2o_runtime.sessions.session import IntArray, Session


@dataclass(frozen=True)
class Watch:
    """How the caller follows a prefill and stops it.

    progress  called with (done, total) in prompt tokens of work
    cancelled asked at every dense tile, in every logical batch of attention, at every token; true raises Cancelled
    """

    progress: Callable[[int, int], None] = lambda done, total: None
    cancelled: Callable[[], bool] = lambda: False

    def checkpoint(self, n: int) -> Callable[[float], None]:
        """A function to call with the finished share of `n` tokens' work, from 0 to 1. Raises Cancelled.

        A layer's dense graphs and attention may alternate; the reported share never decreases.
        """
        done = 0

        def check(share: float) -> None:
            nonlocal done
            if self.cancelled():
                raise Cancelled("prefill was stopped")
            done = max(done, int(share * n))
            self.progress(done, n)

        return check


class Reading:
    """The tokens that a prompt has beyond what is kept of the session.

    last  rows of the last piece; the head can run on them once all is read
    """

    def __init__(
        self,
        forward: Forward,
        session: Session,
        tokens: IntArray,
        policy: PrefillPolicy[Any],
        reuse: Reuse,
        watch: Watch,
        prompt_piece: int | None = None,
    ) -> None:
        """prompt_piece: the approximate number of tokens; None reads at once.

        Raises ConfigError without changing anything.
        """
        self._forward, self._session, self._policy, self._watch = forward, session, policy, watch
        self._before, self._reuse = session.origin, reuse
        self._earliest = session.origin.earliest if reuse.length else 0
        self._new = tokens[reuse.length :]
        forward.layers.settle(policy, reuse.length, len(self._new))
        cuts = self._cuts(prompt_piece) if prompt_piece else ()
        self._spans = [Span(*ends) for ends in zip((0, *cuts), (*cuts, len(self._new)), strict=True)]
        self._stopwatches: list[Stopwatch] = []
        self.last = len(self._spans[-1])
        session.prepare(policy)
        session.logits = None
        session.truncate(reuse.length)

    def run(self, needed: int, earlier: bool = False) -> Iterator[PromptPieceRead]:
        """Read the new tokens into the cache. After the last piece, its logits are available from row
        `needed` on; negative values count from its end. Raises Cancelled, BackendError.

        earlier: whether the same holds for each piece before the last, until the run goes on

        If stopped, the cache keeps the rows from which a later prompt can continue.
        """
        session, n, done = self._session, len(self._new), False
        check = self._watch.checkpoint(n)
        try:
            for rows in self._spans:
                # Until all is done, the cache counts as after an interrupted run.
                session.origin = Provenance()
                more = rows.stop < n
                self._forward.prefill(
                    PromptRun(
                        self._new[rows.start : rows.stop],
                        self._reuse.prefix,
                        self._policy,
                        session,
                        lambda share, rows=rows: check((rows.start + share * len(rows)) / n),  # type: ignore[misc]
                        len(rows) if more and not earlier else needed % len(rows),
                        PromptPiece(rows.start, more),
                    )
                )
                stopwatch = self._forward.stopwatch  # its events on a GPU serve the next piece too
                self._stopwatches.append(stopwatch.read() if more else stopwatch)
                session.append(self._new[rows.start : rows.stop], generated=False)
                if more:
                    self._keep(session.length)
                    yield PromptPieceRead()
            done = True
        finally:
            if not done:
                self._interrupted()
        if self._reuse.prefix is Prefix.HISTORY:
            session.origin = replace(self._before, turn=self._reuse.length)
        else:
            session.origin = Provenance.fresh(self._policy, session.length)
        origin = session.origin.evicting(session.length, session.spec.cache.most_rows)
        session.origin = self._stored(origin, self._earliest)
        self._watch.progress(n, n)

    def read_timer(self) -> PrefillTimer:
        """Time by phase, over all pieces. May wait for the device."""
        timer = PrefillTimer(self._policy.phases)
        for stopwatch in self._stopwatches:
            for phase, seconds in stopwatch.read().seconds.items():
                timer.add(phase, seconds)
        return timer

    def _cuts(self, prompt_piece: int) -> Sequence[int]:
        """Empty if the cache would drop rows between pieces, or if a layer is not divisible."""
        if self._session.spec.cache.most_rows is not None or not self._forward.layers.divisible:
            return ()
        return self._policy.cuts(len(self._new), self._reuse, prompt_piece)

    def _keep(self, rows: int) -> None:
        """From now on an interrupted run leaves the first `rows` rows. A conversation's turn leaves nothing
        before its end.
        """
        if self._reuse.prefix is not Prefix.HISTORY:
            exact = self._reuse.prefix is Prefix.EXACT
            self._reuse = Reuse(Prefix.EXACT if exact else Prefix.BOUNDARY, rows)
            self._before = Provenance.interrupted(self._policy, rows)

    def _interrupted(self) -> None:
        session, length, n = self._session, self._reuse.length, len(self._new)
        session.truncate(length)
        origin = self._policy.after_interruption(self._reuse, n, self._before)
        session.origin = self._stored(origin, self._before.earliest)
        lost = not session.origin.goes_on_at(length) or session.spec.forgets(length + n)
        if session.origin.policy is None or lost:
            session.reset()

    def _stored(self, origin: Provenance, earliest: int) -> Provenance:
        """As it is in this session's cache, of whose rows those before `earliest` were incomplete already."""
        session, spec = self._session, self._session.spec
        rounded = spec.stored_dtype != spec.model.dtype
        return replace(session.store.bounded(origin.from_row(earliest)), rounded=rounded)


def read_given(forward: Forward, session: Session, tokens: IntArray, watch: Watch) -> None:
    """Append tokens that were generated elsewhere; each attends to everything before it.

    Raises Cancelled and BackendError; then the cache is as before.
    """
    n, past, origin = len(tokens), session.length, session.origin
    session.origin = Provenance()
    try:
        forward.prefill(PromptRun(tokens, Prefix.EXACT, Full(), session, watch.checkpoint(n)))
        session.append(tokens, generated=True)
    finally:
        origin = origin.evicting(past + n, session.spec.cache.most_rows)
        if session.length == past:
            session.store.truncate(past)
        session.origin = session.store.bounded(origin)
        if session.length == past and session.spec.forgets(past + n):
            session.reset()  # drops rows that are not recorded
