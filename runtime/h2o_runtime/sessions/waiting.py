"""A session that waits in memory while its live session continues with another prompt."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.caches import RetainedRows
from h2o_runtime.errors import ConfigError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.sessions.arrays import SessionShape, arrays_of, fill, first_row, row_name
from h2o_runtime.sessions.session import IntArray, Session
from h2o_runtime.sessions.transcript import Transcript


@dataclass(frozen=True, eq=False)
class WaitingSession:
    """Copies of a session's arrays on the host.

    retained  keys and values, where they are not among the arrays: they wait in the session's store
    """

    shape: SessionShape
    arrays: Mapping[str, NDArray[Any]]
    retained: RetainedRows | None = None
    transcript: Transcript | None = None

    @classmethod
    def of(cls, session: Session, shape: SessionShape, most_bytes: int) -> WaitingSession | None:
        """None if it takes more than `most_bytes`."""
        retained = session.store.retain(shape.length)
        arrays, size = {}, sum(retained.blocks.values()) if retained else 0
        for name, array in arrays_of(session, shape, rows=retained is None):
            size += array.nbytes
            if size > most_bytes:
                if retained:
                    retained.release()
                return None
            arrays[name] = array.copy()
        return cls(shape, arrays, retained, session.transcript)

    @property
    def nbytes(self) -> int:
        return bytes_of([self])

    @property
    def tokens(self) -> IntArray:
        return self.arrays["tokens"]

    def load_into(self, session: Session) -> None:
        """Make this the live session; it may keep waiting, too."""
        fill(session, self.shape, self._read, self.retained)
        session.transcript = self.transcript

    def copied(self, model: ModelSpec) -> WaitingSession:
        """With copies of everything that waits in the store."""
        if self.retained is None:
            return self
        arrays = dict(self.arrays)
        for layer in range(model.layers):
            first = first_row(model, self.shape, layer)
            rows = self.retained.stored_rows(layer).items()
            arrays |= {row_name(name, layer): array[first:] for name, array in rows}
        return WaitingSession(self.shape, arrays, transcript=self.transcript)

    def release(self) -> None:
        """It no longer waits."""
        if self.retained is not None:
            self.retained.release()

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        return self.arrays[name]


@dataclass(frozen=True, eq=False)
class LiveSession:
    """A live session, between two of its calls, as a source for another session's prompt."""

    session: Session
    shape: SessionShape

    @classmethod
    def of(cls, session: Session) -> LiveSession | None:
        """None where nothing can be gone on from."""
        if session.origin.policy is None or session.spec.cache.most_rows is not None or session.store.moved:
            return None
        try:
            return cls(session, SessionShape.of(session))
        except ConfigError:  # of a policy that cannot save its state
            return None

    @property
    def tokens(self) -> IntArray:
        return self.session.known

    def copied(self) -> WaitingSession:
        waiting = WaitingSession.of(self.session, self.shape, sys.maxsize)
        assert waiting is not None, "it may take any size"
        return waiting


def bytes_of(sessions: Sequence[WaitingSession]) -> int:
    """Bytes of all together: shared rows count once."""
    blocks: dict[int, int] = {}
    for retained in (session.retained for session in sessions if session.retained is not None):
        blocks |= retained.blocks
    return sum(array.nbytes for session in sessions for array in session.arrays.values()) + sum(
        blocks.values()
    )
