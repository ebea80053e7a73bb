"""Input files: regular files of a bounded size, and those of an untrusted folder. FIFOs and devices are refused."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

from h2o_runtime.errors import BundleError, H2OError, InputError

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


def confined(folder: Path, name: str, error: type[H2OError] = BundleError) -> Path:
    """The file `name` of an untrusted `folder`, which need not exist.

    A checkpoint's index and a bundle's manifest name files. A name may be `../../secret`, a link to anywhere, or a
    FIFO that blocks its reader for ever. Links may lead to other files of the folder, and from a snapshot in the
    Hugging Face hub's cache to the blobs beside it. Raises `error` for names that lead elsewhere, and for anything
    but a file or a folder.
    """
    path = folder / name
    if "\0" in name or os.path.isabs(name) or ".." in Path(name).parts:
        raise error(
            f"{folder}: refers to {name!r}, outside of this folder; do not use it unless you trust its source"
        )
    home, place = _real(folder), _real(path)
    if not place.is_relative_to(home) and not any(place.is_relative_to(blobs) for blobs in _blobs(home)):
        raise error(f"{path}: is a link to {place}, outside of its folder; put the file itself there")
    try:
        mode = place.stat().st_mode
    except OSError:
        return path  # opening it reports the problem
    kind = None if stat.S_ISDIR(mode) else kind_of(mode)
    if kind:
        raise error(f"{path}: is {kind}, not a file; put a file there")
    return path


def _blobs(home: Path) -> list[Path]:
    """The blobs folder of the hub's cache if `home` is, or is in, a snapshot."""
    return [_real(snapshots.parent / "blobs") for snapshots in home.parents if snapshots.name == "snapshots"]


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
