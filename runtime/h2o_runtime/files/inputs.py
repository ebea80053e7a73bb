"""Input files: regular files of a bounded size. FIFOs and devices are refused."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

from h2o_runtime.errors import InputError

MOST_TEXT = 256 << 20  # bytes of a prompt or another text
MOST_AT_ONCE = 64 << 20  # limit of a single read from an open file, in bytes

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


class InputFile(io.BufferedReader):
    """Refuses a single read of more than MOST_AT_ONCE bytes, which a damaged header may request:
    ValueError.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        asked = os.fstat(self.fileno()).st_size - self.tell() if size is None or size < 0 else size
        if asked > MOST_AT_ONCE:
            raise ValueError(f"a read of {asked} bytes")
        return super().read(size)


def kind_of(mode: int) -> str | None:
    """The name of a file's type if it is not regular; None for a regular file."""
    return _KINDS.get(stat.S_IFMT(mode))


def open_input(path: Path) -> InputFile:
    """Raises InputError for anything that cannot be opened or is not a regular file; never OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    kind = kind_of(os.fstat(descriptor).st_mode)
    if kind is not None:
        os.close(descriptor)
        raise InputError(f"{path}: is {kind}, not a file; copy its content to a file first")
    return InputFile(io.FileIO(descriptor, "rb"))


def read_input(path: Path, limit: int = MOST_TEXT) -> bytes:
    """The whole file. Raises InputError, also for more than `most` bytes."""
    with open_input(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise InputError(f"{path}: has {size:,} bytes; at most {limit:,} are accepted")
        try:
            return b"".join(iter(lambda: file.read(1 << 20), b""))[:limit]
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
