"""Sessions in a folder: sessions that leave memory are written there and found by their tokens, also after a
restart.

Each is one file in `save_session`'s format. A file is read when a prompt continues it. It stays until a
longer one replaces it or others need the space. Several servers on several machines may use one folder: files
are written under a temporary name and renamed, and each server lists the folder again. There are no locks.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from h2o_runtime.components.options import spelled
from h2o_runtime.errors import InputError, OutputError
from h2o_runtime.files.outputs import remove_abandoned
from h2o_runtime.sessions.arrays import begins
from h2o_runtime.sessions.saved import SavedSession, write_session
from h2o_runtime.sessions.waiting import WaitingSession

log = logging.getLogger(__name__)

SUFFIX = ".session"
MOST_WAITING = 2  # sessions that may wait to be written


class SessionFolder:
    """Sessions of one bundle, in files of at most `most_bytes` together; the least recently used are removed.

    A thread writes. Files of other bundles are left alone, and so are unreadable files, with a log message.

    shared  whether other servers use what this one reads: see `SessionPool.share`
    """

    def __init__(self, folder: Path, most_bytes: int, bundle: str, shared: bool = False) -> None:
        """folder: as `make_private_folder` makes one. Raises OutputError if it cannot be read."""
        self.folder, self.most_bytes, self.shared = folder, most_bytes, shared
        self._bundle = bundle
        self._lock = threading.Lock()
        self._files: list[SavedSession] = []  # least recently used first
        self._refused: dict[Path, tuple[int, int]] = {}  # by path and `_stamp`: not usable here
        self._looking = threading.Lock()
        self._waiting: list[WaitingSession] = []
        self._queue: SimpleQueue[WaitingSession | None] = SimpleQueue()
        try:
            self._find()
        except OSError as error:
            raise OutputError(f"{folder}: not a folder for conversations: {error.strerror}") from error
        self._thread = threading.Thread(target=self._write_all, name="sessions", daemon=True)
        self._thread.start()

    def files(self) -> list[SavedSession]:
        with self._lock:
            return list(self._files)

    def refresh(self) -> None:
        """List the folder again: other servers write, use and remove files too."""
        with self._looking:
            known = {file.path: file for file in self.files()}
            found: list[tuple[int, SavedSession]] = []
            # File times are coarse: files with equal times keep the order of their use here.
            for path in dict.fromkeys((*known, *self.folder.glob(f"*{SUFFIX}"))):
                try:
                    status = path.lstat()
                    saved = known.get(path) or self._open(path, status)
                    if saved is not None:
                        found.append((status.st_mtime_ns, saved))
                except FileNotFoundError:  # another server has removed it meanwhile
                    continue
                except OSError as error:
                    log.warning("not used: %s: %s", path, error.strerror)
            found.sort(key=lambda pair: pair[0])
            with self._lock:
                self._files = [saved for _, saved in found]

    def _open(self, path: Path, status: os.stat_result) -> SavedSession | None:
        """A file that is new here; None if it is unusable, which is logged once."""
        if self._refused.get(path) == _stamp(status):
            return None
        try:
            saved = SavedSession.open(path)
        except InputError as error:
            log.warning("not used: %s", error)
            saved = None
        if saved is not None and saved.bundle == self._bundle:
            return saved
        self._refused[path] = _stamp(status)
        return None

    def waiting(self) -> list[WaitingSession]:
        """Sessions that are not written yet."""
        with self._lock:
            return list(self._waiting)

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files())

    def keep(self, session: WaitingSession, patient: bool = False) -> None:
        """Queue it for writing. Unless `patient`, it is dropped if the queue is full."""
        if session.nbytes > self.most_bytes:
            log.info("a session of %d tokens is too long for %s", session.shape.length, self.folder)
            return
        with self._lock:
            if len(self._waiting) >= MOST_WAITING and not patient:
                log.warning(
                    "a session of %d tokens is not kept: writing to %s is too slow",
                    session.shape.length,
                    self.folder,
                )
                return
            self._waiting.append(session)
        self._queue.put(session)

    def used(self, file: SavedSession) -> None:
        """It has become the live session."""
        with suppress(OSError):
            os.utime(file.path)
        with self._lock:
            if file in self._files:
                self._files.remove(file)
                self._files.append(file)

    def forget(self, lost: SavedSession) -> None:
        """It could not be read. The file stays for inspection."""
        with suppress(OSError):
            self._refused[lost.path] = _stamp(lost.path.lstat())
        with self._lock:
            self._files = [file for file in self._files if file is not lost]

    def close(self) -> None:
        """Returns when everything is written."""
        self._queue.put(None)
        self._thread.join()

    def _find(self) -> None:
        remove_abandoned(self.folder, f"*{SUFFIX}")
        self.refresh()
        if self._files:
            log.info("found %d sessions in %s", len(self._files), self.folder)

    def _write_all(self) -> None:
        while (session := self._queue.get()) is not None:
            try:
                self._write(session)
            except OutputError as error:
                log.warning("a session of %d tokens is not kept: %s", session.shape.length, error)
            finally:
                with self._lock:
                    self._waiting.remove(session)
                del session

    def _write(self, session: WaitingSession) -> None:
        policy = spelled(session.shape.policy, whole=True).encode()
        name = hashlib.sha256(self._bundle.encode() + policy + session.tokens.tobytes()).hexdigest()[:32]
        path = self.folder / f"{name}{SUFFIX}"
        self.refresh()
        known = [file for file in self.files() if file.path == path]
        if known:
            self.used(known[0])
            return
        prefixes = [
            file for file in self.files() if begins(file, session)
        ]  # the session that it continues is not needed twice
        self._make_room(self.most_bytes - session.nbytes, prefixes)
        size = write_session(path, self._bundle, session.shape, session.arrays.items(), session.transcript)
        saved = SavedSession(path, self._bundle, session.shape, session.tokens, session.transcript, size)
        with self._lock:
            self._files.append(saved)
        self._remove(prefixes)

    def _make_room(self, room: int, beside: list[SavedSession]) -> None:
        """Limit all files except those in `beside` to `room` bytes."""
        others = [file for file in self.files() if file not in beside]
        gone: list[SavedSession] = []
        while others and sum(other.nbytes for other in others) > room:
            gone.append(others.pop(0))
        self._remove(gone)

    def _remove(self, gone: list[SavedSession]) -> None:
        with self._lock:
            self._files = [file for file in self._files if file not in gone]
        for file in gone:
            with suppress(OSError):
                file.path.unlink()


def _stamp(status: os.stat_result) -> tuple[int, int]:
    """Changes if another file replaces this one."""
    return status.st_ino, status.st_size
