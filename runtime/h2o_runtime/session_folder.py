"""Conversations in a folder: what leaves memory is written there, and found again by its tokens, also another day.

One file each, as `save_session` writes it. A file is read when a prompt goes on from it, and stays until a longer
one takes its place or others need the room.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.caches import HeldRows
from h2o_runtime.errors import InputError, OutputError
from h2o_runtime.reuse import same_arithmetic
from h2o_runtime.saved_session import PARTIAL, SavedSession, write_session
from h2o_runtime.session import IntArray, Session
from h2o_runtime.session_arrays import SessionShape, row_name
from h2o_runtime.sessions.transcript import Transcript

log = logging.getLogger(__name__)

SUFFIX = ".session"
MOST_WAITING = 2  # conversations that wait to be written, beside which no other one is taken


@dataclass(frozen=True, eq=False)
class Talk:
    """A conversation that left its generator, and its arrays on the host.

    held  its keys and values, where they are none of the arrays: they wait in the generator's store
    """

    shape: SessionShape
    arrays: Mapping[str, NDArray[Any]]
    held: HeldRows | None = None
    transcript: Transcript | None = None

    @property
    def nbytes(self) -> int:
        return nbytes_of([self])

    @property
    def tokens(self) -> IntArray:
        return self.arrays["tokens"]

    def read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        return self.arrays[name]

    def by_itself(self, layers: int) -> Talk:
        """With copies of all that waits in the store, of so many layers."""
        if self.held is None:
            return self
        arrays = dict(self.arrays)
        for layer in range(layers):
            arrays |= {row_name(part, layer): rows for part, rows in self.held.kept(layer).items()}
        return Talk(self.shape, arrays, transcript=self.transcript)

    def release(self) -> None:
        """It waits no more."""
        if self.held is not None:
            self.held.release()


def nbytes_of(talks: Sequence[Talk]) -> int:
    """Together: rows that several share are there once."""
    pieces: dict[int, int] = {}
    for held in (talk.held for talk in talks if talk.held is not None):
        pieces |= held.pieces
    return sum(array.nbytes for talk in talks for array in talk.arrays.values()) + sum(pieces.values())


@dataclass(frozen=True, eq=False)
class Filed:
    """A conversation in a file, which was looked into."""

    saved: SavedSession
    tokens: IntArray
    nbytes: int

    @property
    def shape(self) -> SessionShape:
        return self.saved.shape


def session_of(one: Talk | Filed) -> Session:
    """Its tokens, to be compared with a prompt's."""
    session = Session(0)
    session.tokens, session.length, session.origin = one.tokens, one.shape.length, one.shape.origin
    return session


def begins(one: Talk | Filed, other: Talk | Filed) -> bool:
    """Whether all of it is in the other one too."""
    shared = session_of(one).shared_prefix(other.tokens)
    return shared == one.shape.length and same_arithmetic(one.shape.config, other.shape.config)


class SessionFolder:
    """Conversations of one bundle, in files of at most `most_bytes` together: those not used for longest make room.

    A thread writes. Files of other bundles are left alone; what cannot be read is, too, with a line in the log.
    """

    def __init__(self, folder: Path, most_bytes: int, bundle: str) -> None:
        """Raises OutputError for a folder that cannot be made or read."""
        self.folder, self.most_bytes = folder, most_bytes
        self._bundle = bundle
        self._lock = threading.Lock()
        self._files: list[Filed] = []  # those not used for longest first
        self._waiting: list[Talk] = []
        self._queue: SimpleQueue[Talk | None] = SimpleQueue()
        try:
            folder.mkdir(
                mode=0o700, parents=True, exist_ok=True
            )  # what people said is nobody else's business
            self._find()
        except OSError as error:
            raise OutputError(f"{folder}: not a folder for conversations: {error.strerror}") from error
        self._thread = threading.Thread(target=self._write_all, name="conversations", daemon=True)
        self._thread.start()

    def files(self) -> list[Filed]:
        with self._lock:
            return list(self._files)

    def waiting(self) -> list[Talk]:
        """Those that are not written yet."""
        with self._lock:
            return list(self._waiting)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.files())

    def keep(self, talk: Talk, patient: bool = False) -> None:
        """Have it written. Unless the caller is patient, one that finds others waiting is let go."""
        if talk.nbytes > self.most_bytes:
            log.info("a conversation of %d tokens is too long for %s", talk.shape.length, self.folder)
            return
        with self._lock:
            if len(self._waiting) >= MOST_WAITING and not patient:
                log.warning(
                    "a conversation of %d tokens is not kept: %s is slow", talk.shape.length, self.folder
                )
                return
            self._waiting.append(talk)
        self._queue.put(talk)

    def used(self, one: Filed) -> None:
        """It has become the generator's session."""
        with suppress(OSError):
            os.utime(one.saved.path)
        with self._lock:
            if one in self._files:
                self._files.remove(one)
                self._files.append(one)

    def forget(self, one: Filed) -> None:
        """It could not be read. The file stays for people to look at."""
        with self._lock:
            self._files = [other for other in self._files if other is not one]

    def close(self) -> None:
        """Once everything is written."""
        self._queue.put(None)
        self._thread.join()

    def _find(self) -> None:
        for partial in self.folder.glob(f".*{SUFFIX}{PARTIAL}"):  # of a process that was ended
            partial.unlink(missing_ok=True)
        paths = sorted(self.folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        for path in paths:
            try:
                saved = SavedSession.open(path)
                if saved.bundle == self._bundle:
                    self._files.append(Filed(saved, saved.tokens(), path.stat().st_size))
            except InputError as error:
                log.warning("not used: %s", error)
        if self._files:
            log.info("found %d conversations in %s", len(self._files), self.folder)

    def _write_all(self) -> None:
        while (talk := self._queue.get()) is not None:
            try:
                self._write(talk)
            except OutputError as error:
                log.warning("a conversation of %d tokens is not kept: %s", talk.shape.length, error)
            finally:
                with self._lock:
                    self._waiting.remove(talk)
                del talk

    def _write(self, talk: Talk) -> None:
        config = repr(talk.shape.config).encode()
        name = hashlib.sha256(self._bundle.encode() + config + talk.tokens.tobytes()).hexdigest()[:32]
        path = self.folder / f"{name}{SUFFIX}"
        known = [one for one in self.files() if one.saved.path == path]
        if known:
            self.used(known[0])
            return
        parts = [
            one for one in self.files() if begins(one, talk)
        ]  # what it goes on from need not be there twice
        self._make_room(self.most_bytes - talk.nbytes, parts)
        write_session(path, self._bundle, talk.shape, talk.arrays.items(), talk.transcript)
        saved = SavedSession(path, self._bundle, talk.shape, talk.transcript)
        filed = Filed(saved, talk.tokens, path.stat().st_size)
        with self._lock:
            self._files.append(filed)
        self._remove(parts)

    def _make_room(self, room: int, beside: list[Filed]) -> None:
        """All but those in `beside` are to take at most `room` bytes."""
        others = [one for one in self.files() if one not in beside]
        gone: list[Filed] = []
        while others and sum(one.nbytes for one in others) > room:
            gone.append(others.pop(0))
        self._remove(gone)

    def _remove(self, gone: list[Filed]) -> None:
        with self._lock:
            self._files = [one for one in self._files if one not in gone]
        for one in gone:
            with suppress(OSError):
                one.saved.path.unlink()
