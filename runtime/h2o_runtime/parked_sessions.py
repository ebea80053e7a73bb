"""Conversations that wait: several take turns on one cache, and none is read again from its beginning.

A session that a prompt is about to overwrite is set aside first. Where the cache can hold its rows they stay where
they are, and those that several conversations begin with are there once. Otherwise they are copied to the host's
memory, and copied back when the conversation goes on: a token's rows take a hundredth of the time of reading the
token. What memory has no room for goes to a folder, where there is one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from h2o_runtime.config import PrefillConfig
from h2o_runtime.errors import ConfigError, InputError
from h2o_runtime.reuse import plan_reuse
from h2o_runtime.session import IntArray, Session
from h2o_runtime.session_arrays import SessionShape, arrays_of, decode_of, fill
from h2o_runtime.session_folder import Filed, SessionFolder, Talk, begins, nbytes_of, session_of

if TYPE_CHECKING:
    from h2o_runtime.generator import Generator

log = logging.getLogger(__name__)

WORTH_KEEPING = 64  # tokens that would be lost


class ParkedSessions:
    """Sessions of one generator, those that waited longest first, in at most `most_bytes` of memory."""

    def __init__(self, most_bytes: int, folder: SessionFolder | None = None) -> None:
        self.most_bytes, self.folder = most_bytes, folder
        self._parked: list[Talk] = []

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def several(self) -> bool:
        """Whether other conversations than the generator's are kept."""
        return self.most_bytes > 0 or self.folder is not None

    @property
    def nbytes(self) -> int:
        return nbytes_of(self._parked)

    def change(self, generator: Generator, tokens: IntArray, config: PrefillConfig) -> None:
        """Before the prompt `tokens` [N]: have the session in the generator of which it can keep most."""
        if not self.several:
            return
        keeps = _kept(generator.session, tokens, config)
        waiting: list[Talk | Filed] = [*self._parked]
        if self.folder is not None:
            waiting += [*self.folder.waiting(), *self.folder.files()]
        decode = decode_of(generator)
        known = [
            one for one in waiting if one.shape.length <= generator.context and one.shape.decode == decode
        ]
        best = max(known, key=lambda one: _kept(session_of(one), tokens, config), default=None)
        gains = _kept(session_of(best), tokens, config) if best else 0
        if best is None or gains <= keeps:
            self.set_aside(generator, keeps)
            return
        if isinstance(best, Filed) and self.folder is not None:
            self.folder.used(best)  # or it might have to make room for the one that is set aside
        elif best in self._parked:
            self._parked.remove(best)
        self.set_aside(generator)
        if self._go_on(generator, best, config):
            log.info("went on with a conversation of %d tokens; %d wait", best.shape.length, len(self))
        if isinstance(best, Talk):
            if best.shape.length - gains < WORTH_KEEPING:
                best.release()
            else:  # the prompt only begins like it: it waits on
                self._park(best, generator)

    def set_aside(self, generator: Generator, keeps: int = 0, patient: bool = False) -> None:
        """Keep the generator's session, of which only the first `keeps` rows will be left, if that is worth while.

        Those that waited longest make room. `patient` is the folder's.
        """
        session = generator.session
        if not self.several or session.origin.config is None or session.length - keeps < WORTH_KEEPING:
            return
        try:
            shape = SessionShape.of(generator)
        except ConfigError as error:
            log.info("%s", error)
            return
        talk = self._taken(generator, shape)
        if talk is None:
            log.info("a conversation of %d tokens is too long to wait beside others", shape.length)
            return
        # What it goes on from need not be there twice.
        for one in [one for one in self._parked if begins(one, talk)]:
            self._parked.remove(one)
            one.release()
        if talk.nbytes > self.most_bytes:
            self._file(talk, generator, patient)
        else:
            self._park(talk, generator, patient)

    def close(self, generator: Generator) -> None:
        """All that is there goes to the folder, where there is one. Waits until it is written."""
        if self.folder is None:
            return
        self.set_aside(generator, patient=True)
        for talk in self._parked:
            self._file(talk, generator, patient=True)
        self._parked = []
        self.folder.close()
        self.folder = None

    def _taken(self, generator: Generator, shape: SessionShape) -> Talk | None:
        """The generator's session; None where there is no room for it."""
        most = max(self.most_bytes, self.folder.most_bytes if self.folder else 0)
        held = generator.store.hold(shape.length)
        arrays, size = {}, sum(held.pieces.values()) if held else 0
        for name, array in arrays_of(generator, shape, rows=held is None):
            size += array.nbytes
            if size > most:
                if held:
                    held.release()
                return None
            arrays[name] = array.copy()
        return Talk(shape, arrays, held, generator.session.transcript)

    def _park(self, talk: Talk, generator: Generator, patient: bool = False) -> None:
        self._parked.append(talk)
        while self.nbytes > self.most_bytes:
            self._file(self._parked.pop(0), generator, patient)

    def _file(self, talk: Talk, generator: Generator, patient: bool) -> None:
        """It leaves memory."""
        if self.folder is not None:
            self.folder.keep(talk.by_itself(generator.model.layers), patient)
        talk.release()

    def _go_on(self, generator: Generator, one: Talk | Filed, config: PrefillConfig) -> bool:
        if isinstance(one, Talk):
            fill(generator, one.shape, one.read, one.held)
            generator.session.transcript = one.transcript
            return True
        assert self.folder is not None
        try:
            one.saved.load_into(generator, config)
        except InputError as error:
            log.warning("read anew: %s", error)
            self.folder.forget(one)
            return False
        return True


def _kept(session: Session, tokens: IntArray, config: PrefillConfig) -> int:
    return plan_reuse(session, tokens, config, session.origin).length
