"""Becoming an ordinary user for a while: root may read everything, so tests of permissions show nothing as root."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

NOBODY = 65534


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Root becomes nobody in this process."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder where nobody may go too: pytest's are its user's alone. It goes with whatever was closed in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        for each in folder.rglob("*"):
            each.chmod(0o755)


@contextmanager
def nameless_user() -> Iterator[None]:
    """A user as in a container: a number that has no name here, and thus no home."""
    outside = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    with patch("os.getuid", lambda: 4_000_000_000), patch.dict(os.environ, outside, clear=True):
        yield
