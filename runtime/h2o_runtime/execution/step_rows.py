"""A decode step of several rows, of one session or many, as one graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.backend import Backend, StepTensors
from h2o_runtime.kv_entry import KV_ENTRY, kv_entries
from h2o_runtime.layer_spec import AttentionShape
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.sessions.session import Float32, Session

Int64: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class StepRow:
    """One token of a decode step: its session's next token, or the one after the session's previous row."""

    token: int
    session: Session


class RowsStep(ABC):
    """A step of several rows together: all layers, for any sessions of a loaded model."""

    def __init__(self) -> None:
        self._entries: WeakKeyDictionary[Session, NDArray[np.uint8] | None] = WeakKeyDictionary()

    def takes(self, session: Session) -> bool:
        """Whether rows of the session may be in such a step: they never move."""
        return self._entry(session) is not None

    @abstractmethod
    def run(self, rows: Sequence[StepRow]) -> Float32:
        """Run rows of supported sessions → logits float32 [R, vocab], valid until the next call."""

    def _entry(self, session: Session) -> NDArray[np.uint8] | None:
        """The session's caches as kernels read them, uint8 [layers, bytes]."""
        if session not in self._entries:
            caches = session.store.fixed_rows()
            self._entries[session] = None if caches is None else kv_entries(caches)
        return self._entries[session]


def place_rows(rows: Sequence[StepRow], tokens: Int64, positions: Int64, lengths: Int64) -> None:
    """Write each row's token, its position, and its cache's length with it; int64 [R or more] each. The caches make
    ready for the rows."""
    given: Counter[Session] = Counter()
    for i, row in enumerate(rows):
        behind = given[row.session]
        tokens[i] = row.token
        positions[i] = row.session.next_position + behind
        lengths[i] = row.session.length + behind + 1
        given[row.session] += 1
    for session, count in given.items():
        session.store.before_step(session.length, count)


class StepGraph(RowsStep):
    """The graph, and what it is given: see `StepTensors`.

    most  rows of one step
    """

    def __init__(self, backend: Backend, shapes: Sequence[AttentionShape], logits: Float32) -> None:
        """shapes: of attention, in every layer. logits [rows, vocab] receive those of every step."""
        super().__init__()
        self.limit = min(MOST_STEP_ROWS, len(logits))
        self._logits = logits
        self._tokens, self._positions, self._lengths = np.zeros((3, self.limit), np.int64)
        self._caches = np.zeros((self.limit, len(shapes), KV_ENTRY.itemsize), np.uint8)
        self._run = backend.whole_step(
            StepTensors(
                self._tokens, self._positions, self._lengths, self._caches, logits[: self.limit], shapes
            )
        )

    def takes(self, session: Session) -> bool:
        """Also whether there is a graph."""
        return self._run is not None and super().takes(session)

    def run(self, rows: Sequence[StepRow]) -> Float32:
        assert self._run is not None
        for i, row in enumerate(rows):
            entry = self._entry(row.session)
            assert entry is not None
            self._caches[i] = entry
        place_rows(rows, self._tokens, self._positions, self._lengths)
        self._run(len(rows))
        return self._logits[: len(rows)]
