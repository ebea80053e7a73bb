"""Conversations that wait: several take turns on one cache, and none is read again from its beginning.

A session that a prompt is about to overwrite is copied to the host's memory first, and copied back when its
conversation goes on. Copying a token's rows takes a hundredth of the time of reading the token.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.config import PrefillConfig
from h2o_runtime.errors import ConfigError
from h2o_runtime.reuse import plan_reuse, same_arithmetic
from h2o_runtime.session import IntArray, Session
from h2o_runtime.session_arrays import SessionShape, arrays_of, fill

if TYPE_CHECKING:
    from h2o_runtime.generator import Generator

log = logging.getLogger(__name__)

WORTH_KEEPING = 64  # tokens that would be lost


@dataclass(frozen=True, eq=False)
class _Parked:
    shape: SessionShape
    arrays: dict[str, NDArray[Any]]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def session(self) -> Session:
        """Its tokens, to be compared with a prompt's."""
        session = Session(0)
        session.tokens, session.length = self.arrays["tokens"], self.shape.length
        session.origin = self.shape.origin
        return session

    def read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        return self.arrays[name]

    def begins(self, other: _Parked) -> bool:
        """Whether all of it is in the other one too."""
        shared = self.session().shared_prefix(other.arrays["tokens"])
        return shared == self.shape.length and same_arithmetic(self.shape.config, other.shape.config)


class ParkedSessions:
    """Sessions of one generator, those that waited longest first, in at most `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._parked: list[_Parked] = []

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self._parked)

    def change(self, generator: Generator, tokens: IntArray, config: PrefillConfig) -> None:
        """Before the prompt `tokens` [N]: have the session in the generator of which it can keep most."""
        if not self.most_bytes:
            return
        current = generator.session
        keeps = _kept(current, tokens, config)
        best = max(self._parked, key=lambda one: _kept(one.session(), tokens, config), default=None)
        if best is None or _kept(best.session(), tokens, config) <= keeps:
            self.set_aside(generator, keeps)
            return
        self._parked.remove(best)
        self.set_aside(generator)
        fill(generator, best.shape, best.read)
        log.info("went on with a conversation of %d tokens; %d wait", best.shape.length, len(self))

    def set_aside(self, generator: Generator, keeps: int = 0) -> None:
        """Copy the generator's session, of which only the first `keeps` rows will be left, if that is worth while.

        Those that waited longest make room.
        """
        session = generator.session
        if not self.most_bytes or session.origin.config is None or session.length - keeps < WORTH_KEEPING:
            return
        try:
            shape = SessionShape.of(generator)
        except ConfigError as error:
            log.info("%s", error)
            return
        arrays, size = {}, 0
        for name, array in arrays_of(generator, shape):
            size += array.nbytes
            if size > self.most_bytes:
                log.info("a conversation of %d tokens is too long to wait beside others", shape.length)
                return
            arrays[name] = array.copy()
        parked = _Parked(shape, arrays)
        # What it goes on from need not be there twice.
        self._parked = [one for one in self._parked if not one.begins(parked)]
        self._parked.append(parked)
        while self.nbytes > self.most_bytes:
            del self._parked[0]


def _kept(session: Session, tokens: IntArray, config: PrefillConfig) -> int:
    return plan_reuse(session, tokens, config, session.origin).length
