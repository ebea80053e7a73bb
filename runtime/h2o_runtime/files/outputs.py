"""A file that is either the one of before or the new one, whole; and which places may be written to."""

from __future__ import annotations

import glob
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from h2o_runtime.errors import OutputError
from h2o_runtime.files.inputs import kind_of

ABANDONED = 24 * 3600  # seconds


def check_target(path: Path) -> Path:
    """The regular file that `path` is or will be, links followed. Called before the work whose result it gets.

    Raises OutputError for a folder, a FIFO or a device, a place inside a bundle, and a folder that does not exist
    or that cannot be written.
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


def check_outside_bundles(path: Path) -> None:
    """Raises OutputError for a place inside a bundle, whose files are all listed in its manifest."""
    target = Path(os.path.realpath(path))
    for folder in target.parents:
        if is_bundle(folder):
            raise OutputError(f"{path}: is inside the bundle {folder}; name a place outside of it")


def is_bundle(folder: Path) -> bool:
    """Whether it looks like one: others have a manifest.json too."""
    try:
        return (folder / "manifest.json").is_file() and any(folder.glob("onnx/*.onnx"))
    except OSError:
        return False


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a whole file at once: whoever is ended meanwhile leaves the one of before. Raises OutputError."""
    with replaced(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path` when the block ends well. Raises OutputError; see `check_target`."""
    target = check_target(path)
    partial = _partial(target)
    try:
        with suppress(FileNotFoundError):
            partial.unlink()  # a link that somebody put there
        remove_abandoned(target.parent, glob.escape(target.name))
        yield partial
        os.replace(partial, target)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def remove_abandoned(folder: Path, names: str) -> None:
    """Remove what processes that were ended meanwhile have left of files. names: a pattern of the files' names.

    Of another machine's processes nobody knows here: what they have not written to for a day is removed.
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


def _partial(target: Path) -> Path:
    """Each process of each machine has its own: two that write the same file do not write into each other's."""
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
