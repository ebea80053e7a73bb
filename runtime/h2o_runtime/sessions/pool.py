"""Waiting sessions: conversations take turns on a live session, and none is read again from its beginning.

A session that a prompt is about to overwrite is set aside first. If the cache can retain its rows, they stay
in place, and rows that sessions share are stored once. Otherwise they are copied to host memory, and back
when the session continues. The prompt that comes waits for the copy, so a session of which the prompt keeps
nearly everything is not copied. Sessions without room in memory go to a folder, if there is one.

If several sessions are live, a prompt can also continue from another live session: from a copy, or from the
same pages.
"""

from __future__ import annotations

import logging
from typing import Any

from h2o_runtime.caches.reuse import (
    ShortDifference,
    plan_reuse,
    same_arithmetic,
    shared_prefix,
    short_difference,
)
from h2o_runtime.errors import ConfigError, InputError
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.sessions.arrays import SessionShape, begins
from h2o_runtime.sessions.folder import SessionFolder
from h2o_runtime.sessions.saved import SavedSession
from h2o_runtime.sessions.session import IntArray, Session
from h2o_runtime.sessions.transcript import Transcript
from h2o_runtime.sessions.waiting import LiveSession, WaitingSession, bytes_of

log = logging.getLogger(__name__)

WORTH_KEEPING = 64  # tokens that would be lost
COPIED = 32  # tokens whose rows are copied out and back in the time in which one token is read
SHARED_STEPS = 8  # a shared session is written again once an eighth of it is new


class SharedPrompt:
    """A prompt that several answers follow: the first reads it, the others go on from its end.

    session  as it was there; None before it was read, and where it cannot be kept
    """

    def __init__(self) -> None:
        self.session: WaitingSession | None = None


class SessionPool:
    """Sessions that are not live, in at most `most_bytes` of memory, longest wait first."""

    def __init__(self, most_bytes: int = 0, folder: SessionFolder | None = None) -> None:
        self.most_bytes, self.folder = most_bytes, folder
        self._waiting: list[WaitingSession] = []
        self._live: list[Session] = []
        self.prompts: list[SharedPrompt] = []  # those that are kept

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def several(self) -> bool:
        """Whether sessions other than the live one are kept."""
        return self.most_bytes > 0 or self.folder is not None

    @property
    def nbytes(self) -> int:
        return bytes_of(self._waiting)

    def join(self, session: Session) -> None:
        """The session is live from now on, like the others."""
        self._live.append(session)

    def transcripts(self) -> list[Transcript]:
        """The sessions in the folder, least recently used first."""
        found = [file.transcript for file in self.folder.files()] if self.folder else []
        return [transcript for transcript in found if transcript is not None]

    def change(self, session: Session, tokens: IntArray, policy: PrefillPolicy[Any]) -> None:
        """Before the prompt `tokens` [N]: make the session live of which the prompt can keep the most."""
        if not self.several and self._live == [session]:
            return
        if self.folder is not None:
            self.folder.refresh()
        keeps = plan_reuse(session.known, session.origin, tokens, policy).length
        best = self._best(session, tokens, policy)
        gains = _gains(best, tokens, policy) if best else 0
        if best is None or gains <= keeps:
            self.set_aside(session, keeps)
            return
        if isinstance(best, LiveSession):
            copied = best.copied()
            self.set_aside(session)
            copied.load_into(session)
            copied.release()
            log.info("went on with what another session has read, of %d tokens", best.shape.length)
            return
        if isinstance(best, SavedSession):
            assert self.folder is not None
            self.folder.used(best)  # otherwise it might be dropped to make room for the one that is set aside
        elif best in self._waiting:
            self._waiting.remove(best)
        self.set_aside(session)
        if self._go_on(session, best, policy):
            log.info("went on with a session of %d tokens; %d wait", best.shape.length, len(self))
        if isinstance(best, WaitingSession):
            if best.shape.length - gains < WORTH_KEEPING:
                best.release()
            else:  # the prompt only shares its beginning: it keeps waiting
                self._add(best, session)

    def offers(self, session: Session, tokens: IntArray, policy: PrefillPolicy[Any]) -> int:
        """Tokens of the prompt `tokens` [N] that it could keep of another session than the live one."""
        best = self._best(session, tokens, policy)
        return max(_gains(best, tokens, policy), 0) if best else 0

    def difference(self, tokens: IntArray, policy: PrefillPolicy[Any], kept: int) -> ShortDifference | None:
        """The short difference from a session in memory for which the prompt `tokens` [N] keeps no more than `kept`
        rows."""
        known = [live.known for live in self._live if same_arithmetic(live.origin.policy, policy)]
        known += [one.tokens for one in self._waiting if same_arithmetic(one.shape.policy, policy)]
        found = [short for one in known if (short := short_difference(one, tokens, kept))]
        return max(found, key=lambda short: short.again, default=None)

    def keep(self, prompt: SharedPrompt, session: Session) -> None:
        """The session has just read the prompt: keep it as it is for more answers, until they are made."""
        live = LiveSession.of(session)
        if prompt.session is None and live is not None:
            prompt.session = live.copied()
            self.prompts.append(prompt)

    def begin_answer(self, prompt: SharedPrompt, session: Session) -> None:
        """Make the live session what the prompt was kept as, if it was."""
        if prompt.session is not None:
            self.set_aside(session)
            prompt.session.load_into(session)

    def drop(self, prompt: SharedPrompt) -> None:
        """No more answers to it come."""
        if prompt.session is not None:
            prompt.session.release()
            prompt.session = None
            self.prompts.remove(prompt)

    def give_up_session(self) -> None:
        """The session that waited longest leaves memory, as those at work need its place."""
        self._file(self._waiting.pop(0), self._live[0], patient=False)

    def give_up_prompt(self) -> None:
        """So does a prompt that is kept: the answers to come read it anew."""
        self.drop(self.prompts[0])

    def share(self, session: Session) -> None:
        """A prompt was answered: write the session for other servers on the folder, unless most of it is
        already there.
        """
        policy = session.origin.policy
        if self.folder is None or not self.folder.shared or policy is None:
            return
        known: list[WaitingSession | SavedSession] = [*self.folder.files(), *self.folder.waiting()]
        alike = [file for file in known if same_arithmetic(file.shape.policy, policy)]
        written = max((shared_prefix(file.tokens, session.known) for file in alike), default=0)
        if session.length - written < max(WORTH_KEEPING, session.length // SHARED_STEPS):
            return
        try:
            shape = SessionShape.of(session)
        except ConfigError as error:
            log.info("%s", error)
            return
        waiting = WaitingSession.of(session, shape, self.folder.most_bytes)
        if waiting is not None:
            self._file(waiting, session, patient=False)

    def set_aside(self, session: Session, keeps: int = 0, patient: bool = False) -> None:
        """Keep the live session, of which the prompt will leave only the first `keeps` rows, if reading the
        others again would take longer.

        The longest-waiting sessions make room. `patient` is the folder's.
        """
        lost = session.length - keeps
        if not self.several or session.origin.policy is None or lost < _price(session):
            return
        try:
            shape = SessionShape.of(session)
        except ConfigError as error:
            log.info("%s", error)
            return
        limit = max(self.most_bytes, self.folder.most_bytes if self.folder else 0)
        waiting = WaitingSession.of(session, shape, limit)
        if waiting is None:
            log.info("a session of %d tokens is too long to wait beside others", shape.length)
            return
        # Drop sessions that it continues.
        for shorter in [session for session in self._waiting if begins(session, waiting)]:
            self._waiting.remove(shorter)
            shorter.release()
        if waiting.nbytes > self.most_bytes:
            self._file(waiting, session, patient)
        else:
            self._add(waiting, session, patient)

    def close(self, *live: Session) -> None:
        """All sessions go to the folder, if there is one. Waits until they are written."""
        if self.folder is None:
            return
        for session in live:
            self.set_aside(session, patient=True)
        for waiting in self._waiting:
            self._file(waiting, live[0], patient=True)
        self._waiting = []
        self.folder.close()
        self.folder = None

    def _best(
        self, session: Session, tokens: IntArray, policy: PrefillPolicy[Any]
    ) -> WaitingSession | SavedSession | LiveSession | None:
        waiting: list[WaitingSession | SavedSession | LiveSession] = [*self._waiting]
        if self.folder is not None:
            filed: list[WaitingSession | SavedSession] = [*self.folder.waiting(), *self.folder.files()]
            waiting += [file for file in filed if _has_room(session, file.shape.length)]
        waiting += [live for peer in self._live if peer is not session and (live := LiveSession.of(peer))]
        context, decode = session.spec.context, session.spec.decoding
        fitting = [kept for kept in waiting if kept.shape.length <= context and kept.shape.decode == decode]
        return max(fitting, key=lambda kept: _gains(kept, tokens, policy), default=None)

    def _add(self, waiting: WaitingSession, session: Session, patient: bool = False) -> None:
        self._waiting.append(waiting)
        while self.nbytes > self.most_bytes:
            self._file(self._waiting.pop(0), session, patient)

    def _file(self, waiting: WaitingSession, session: Session, patient: bool) -> None:
        """It leaves memory."""
        if self.folder is not None:
            self.folder.keep(waiting.copied(session.spec.model), patient)
        waiting.release()

    def _go_on(
        self, session: Session, source: WaitingSession | SavedSession, policy: PrefillPolicy[Any]
    ) -> bool:
        if isinstance(source, WaitingSession):
            source.load_into(session)
            return True
        assert self.folder is not None
        try:
            source.load_into(session, policy)
        except InputError as error:
            log.warning("the conversation is read again: %s", error)
            self.folder.forget(source)
            return False
        return True


def _has_room(session: Session, rows: int) -> bool:
    return session.store.missing_blocks(0, rows, waiting=True) <= session.store.free_blocks()


def _price(session: Session) -> int:
    """The number of tokens that are read in the time that keeping the session takes, and at least a few."""
    return WORTH_KEEPING if session.store.in_blocks else max(WORTH_KEEPING, session.length // COPIED)


def _gains(
    session: WaitingSession | SavedSession | LiveSession, tokens: IntArray, policy: PrefillPolicy[Any]
) -> int:
    """Tokens that the prompt could keep of it. A session that stays in place must be worth a copy."""
    kept = plan_reuse(session.tokens, session.shape.origin, tokens, policy).length
    return kept - (_price(session.session) if isinstance(session, LiveSession) else 0)
