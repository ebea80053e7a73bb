"""Folders that are there whole or not at all: written aside, and renamed into place when they are complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from h2o_runtime.errors import OutputError


@contextlib.contextmanager
def staged_folder(output: Path, force: bool) -> Iterator[Path]:
    """A temporary folder beside `output` that becomes it when the block ends well, and vanishes otherwise.

    Raises OutputError when `output` exists (unless `force`) or cannot be written.
    """
    check_output(output, force)
    target = Path(os.path.realpath(output))
    missing = [folder for folder in target.parents if not folder.exists()]  # the innermost first
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise OutputError(f"{output.parent}: cannot write there: {error.strerror}") from error
    try:
        staging.chmod(0o777 & ~_umask())
        yield staging
        with _undisturbed():
            _put_in_place(staging, target)
    except OSError as error:
        raise OutputError(f"{output}: writing failed: {error.strerror or error}") from error
    finally:
        with _undisturbed():
            shutil.rmtree(staging, ignore_errors=True)
            for folder in missing:
                with contextlib.suppress(OSError):  # it holds the output, or what somebody else put there
                    folder.rmdir()


def check_output(output: Path, force: bool) -> None:
    """Refuse what must not or cannot be replaced before any work is done."""
    try:
        if not output.exists():
            return
        if not output.is_dir():
            raise OutputError(f"{output}: exists and is not a folder")
        if Path.cwd().is_relative_to(output.resolve()):
            raise OutputError(f"{output}: is where this command runs; name a new folder in it")
        if output.is_mount():
            raise OutputError(f"{output}: is a mount point and cannot be replaced; name a new folder in it")
        if any(output.iterdir()):
            if not force:
                raise OutputError(f"{output}: exists already; choose another folder or add --force")
            if not (output / "manifest.json").is_file():
                raise OutputError(f"{output}: exists and is not a bundle, so --force does not replace it")
    except OSError as error:
        raise OutputError(f"{output}: cannot write there: {error.strerror}") from error


def _put_in_place(staging: Path, target: Path) -> None:
    """Rename `staging` to `target`. What is there goes away, unless something fails: then it stays."""
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
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM do nothing in here: a short moment in which they would leave half of something."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
