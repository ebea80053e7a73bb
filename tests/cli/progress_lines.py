"""The lines that a long command writes about its progress where no terminal reads them."""

from __future__ import annotations

import re


def without_progress(err: bytes) -> bytes:
    """The rest of standard error. There must be a line of progress."""
    rest, lines = re.subn(rb"(?m)^\d+:\d\d:\d\d \d+ of \d+: \S.*\n", b"", err)
    assert lines
    return rest
