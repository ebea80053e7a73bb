"""Folders that are complete or absent: written under a temporary name, and renamed when complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from h2o_runtime.errors import OutputError
from h2o_runtime.process import STOPPING


@contextlib.contextmanager
def staged_folder(output: Path, force: bool) -> Iterator[Path]:
    """A temporary folder beside `output` that becomes it when the block succeeds, and is removed otherwise.

    Raises OutputError if `output` exists (unless `force`), cannot be written, or is being written by another
    process.
    """
    check_output(output, force)
    target = Path(os.path.realpath(output))
    missing = [folder for folder in target.parents if not folder.exists()]  # the innermost first
    staging = target.parent / f".{target.name}.partial"
    lock: int | None = None
    try:
        with _undisturbed(later=True):
            lock = _begin(staging, output)
        _recover(target)
        check_output(output, force)  # again: another command may have created it meanwhile
        yield staging
        with _undisturbed():
            check_output(output, force)
            _put_in_place(staging, target)
    except OSError as error:
        raise OutputError(f"{output}: writing failed: {error.strerror or error}") from error
    finally:
        with _undisturbed():
            if lock is not None:
                shutil.rmtree(staging, ignore_errors=True)
                os.close(lock)
            for folder in missing:
                with contextlib.suppress(OSError):  # it contains the output, or other files
                    folder.rmdir()


def _begin(staging: Path, output: Path) -> int:
    """As `_claim`, in a folder that need not exist."""
    try:
        staging.parent.mkdir(parents=True, exist_ok=True)
        return _claim(staging, output)
    except OSError as error:
        raise OutputError(f"{output.parent}: cannot write there: {error.strerror}") from error


def _claim(staging: Path, output: Path) -> int:
    """Create `staging`, empty and exclusive → its descriptor, which holds a lock while it is open.

    The lock ends with the process, so leftovers of a killed process can be distinguished from work in
    progress. Raises OutputError if another process writes.
    """
    while True:
        with contextlib.suppress(FileExistsError):
            staging.mkdir()
        lock = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with where_locks_are_unknown():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(lock, staging):
                for leftover in staging.iterdir():
                    _remove(leftover)
                return lock
        except BlockingIOError:
            os.close(lock)
            raise OutputError(f"{output}: is being written by another command; wait for it") from None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # its owner renamed it meanwhile


def _recover(target: Path) -> None:
    """Leftovers of a process that was killed while it replaced `target`: restore what exists nowhere else."""
    for aside in sorted(target.parent.glob(f".{glob.escape(target.name)}.old.*")):
        old = aside / target.name
        if old.exists() and not target.exists():
            os.replace(old, target)
        _remove(aside)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def where_locks_are_unknown() -> Iterator[None]:
    """Some network file systems have no locks; there, users must not export twice to one folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise


def check_output(output: Path, force: bool) -> None:
    """Refuse what must not or cannot be replaced, before any work."""
    try:
        if not output.exists():
            return
        if not output.is_dir():
            raise OutputError(f"{output}: exists and is not a folder")
        if Path.cwd().is_relative_to(output.resolve()):
            raise OutputError(f"{output}: is the current folder; name a new folder in it")
        if output.is_mount():
            raise OutputError(f"{output}: is a mount point and cannot be replaced; name a new folder in it")
        if any(output.iterdir()):
            if not (output / "manifest.json").is_file():
                refused = ", so `force` does not replace it" if force else ""
                raise OutputError(f"{output}: exists and is not a bundle{refused}; choose another folder")
            if not force:
                raise OutputError(f"{output}: exists already; choose another folder or add `force`")
    except OSError as error:
        raise OutputError(f"{output}: cannot write there: {error.strerror}") from error


def _put_in_place(staging: Path, target: Path) -> None:
    """Rename `staging` to `target`. An existing `target` is removed, unless something fails."""
    if not target.exists():
        os.replace(staging, target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    old = aside / target.name
    try:
        os.replace(target, old)
        os.replace(staging, target)
    except OSError:
        if old.exists():
            os.replace(old, target)
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def _undisturbed(later: bool = False) -> Iterator[None]:
    """Blocks Ctrl-C, SIGTERM and SIGHUP for a short moment in which they would leave half a result.

    later: they take effect at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, frame: came.append(number)) for number in STOPPING
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came and later:
        signal.raise_signal(came[0])
