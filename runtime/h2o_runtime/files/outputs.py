"""Output files: a file is always the old or the new one, complete. Also checks which places may be
written.
"""

from __future__ import annotations

import glob
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from h2o_runtime.errors import OutputError
from h2o_runtime.files.inputs import kind_of

ABANDONED = 24 * 3600  # seconds
TRIAL = bytes(1 << 16)  # written and removed again: what tells that a disk is full


def check_target(path: Path) -> Path:
    """The regular file that `path` is or will be, with links resolved. Called before the work whose result is
    written there.

    Raises OutputError for a folder, a FIFO or a device, a place inside a bundle, and a folder that is missing
    or cannot be written.
    """
    check_outside_bundles(path)
    found = None
    try:
        target = Path(os.path.realpath(path))
        with suppress(FileNotFoundError):
            _partial(target).lstat()  # a name may be too long
        with suppress(FileNotFoundError):
            found = kind_of(target.stat().st_mode)
        writable = os.access(target.parent, os.W_OK | os.X_OK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{path}: cannot be written: {reason}") from error
    if found is not None:
        raise OutputError(f"{path}: is {found}, and only a file is replaced; name another place")
    if not target.parent.is_dir():
        raise OutputError(f"{path}: cannot be written: {target.parent} is not a folder that exists")
    if not writable:
        raise OutputError(f"{path}: cannot be written: no permission to write in {target.parent}")
    return target


def make_private_folder(folder: Path) -> None:
    """Create a folder that its user alone can enter, unless it exists, and check that files can be written there.

    Raises OutputError for a place inside a bundle, and for a folder that cannot be created, listed or written.
    """
    check_outside_bundles(folder)
    trial = _partial(folder / "trial")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.listdir(folder)
        with _private(trial) as file:
            file.write(TRIAL)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OutputError(
            f"{folder}: files cannot be written there: {error.strerror or error}; name another folder, or change "
            "this one"
        ) from error
    finally:
        with suppress(OSError):
            trial.unlink()


def check_own_target(path: Path, beginning: bytes, what: str) -> None:
    """As `check_target`, for a file that a command replaces only if it is one of its own, or empty.

    beginning: first bytes of such a file; what: its name in the message
    """
    target = check_target(path)
    try:
        with target.open("rb") as file:
            found = file.read(len(beginning))
    except FileNotFoundError:
        return
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror}") from error
    if found and found != beginning:
        raise OutputError(f"{path}: is a file, but no {what}; name another file")


def check_outside_bundles(path: Path, may_be_one: bool = False) -> None:
    """Raises OutputError for a bundle and a place inside of one, whose files are all listed in its manifest, and
    for a relative path if the working directory was removed.

    may_be_one: a bundle that is replaced as a whole is no error
    """
    try:
        target = Path(os.path.realpath(path))
    except FileNotFoundError as error:
        raise OutputError(
            f"{path}: cannot be written: the working directory was removed; change to another, or give a whole path"
        ) from error
    for folder in target.parents if may_be_one else (target, *target.parents):
        if is_bundle(folder):
            of = "a bundle" if folder == target else f"inside the bundle {folder}"
            raise OutputError(f"{path}: is {of}; name a place outside of it")


def is_bundle(folder: Path) -> bool:
    """Whether it looks like one: others have a manifest.json too."""
    try:
        return (folder / "manifest.json").is_file() and any(folder.glob("onnx/*.onnx"))
    except OSError:
        return False


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a whole file at once: a process that is killed leaves the old one. Raises OutputError."""
    with replaced(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replaced(path: Path, private: bool = False) -> Iterator[Path]:
    """A temporary path, which becomes `path` when the block succeeds. Raises OutputError; see
    `check_target`.

    private: only its user can read the file
    """
    target = check_target(path)
    partial = _partial(target)
    try:
        with suppress(FileNotFoundError):
            partial.unlink()  # a link that was already there
        remove_abandoned(target.parent, glob.escape(target.name))
        if private:
            _private(partial).close()
        yield partial
        os.replace(partial, target)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def remove_abandoned(folder: Path, names: str) -> None:
    """Remove temporary files of killed processes. names: a pattern of the files' names.

    Processes of other machines cannot be checked: their files are removed after a day without writes.
    """
    for partial in folder.glob(f".{names}.*.partial"):
        with suppress(OSError, ValueError, OverflowError):
            *_, machine, process, _ = partial.name.split(".")
            if machine == _machine():
                abandoned = not _runs(int(process))
            else:
                abandoned = time.time() - partial.stat().st_mtime > ABANDONED
            if abandoned:
                partial.unlink()


def _private(path: Path) -> IO[bytes]:
    """A new file with mode 0600."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")


def _partial(target: Path) -> Path:
    """Different for each process of each machine, so that two writers of one file do not share it."""
    return target.with_name(f".{target.name}.{_machine()}.{os.getpid()}.partial")


def _machine() -> str:
    return re.sub(r"[^a-z0-9-]", "-", socket.gethostname().lower())[:32]


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def user_cache() -> Path:
    """Raises OutputError for a user without a home, as in a container whose user has a number alone."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError as error:
        raise OutputError(
            "files are kept in the user's cache, and this user has no home folder: set XDG_CACHE_HOME to a folder"
        ) from error
