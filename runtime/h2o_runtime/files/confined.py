"""Files of an untrusted folder: only regular files inside it are read.

A checkpoint's index and a bundle's manifest name files. A name may be `../../secret`, a link to anywhere, or
a FIFO that blocks its reader for ever.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from h2o_runtime.errors import BundleError, H2OError
from h2o_runtime.files.inputs import kind_of


def confined(folder: Path, name: str, error: type[H2OError] = BundleError) -> Path:
    """The file `name` of `folder`, which need not exist.

    Links may lead to other files of the folder, and from a snapshot in the Hugging Face hub's cache to the
    blobs beside it. Raises `error` for names that lead elsewhere, and for anything but a file or a folder.
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
