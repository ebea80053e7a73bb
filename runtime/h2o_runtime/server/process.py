"""What the operating system knows of this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path


def resident_bytes() -> int:
    """Memory that the process has resident now; 0 where that cannot be found out."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def give_back_memory() -> None:
    """Let the system have what the C library keeps of freed memory; on a small device others need it.

    Without this one long request, freed in pieces, leaves the process larger for the rest of its life. Takes
    a millisecond or so.
    """
    with contextlib.suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)
