"""Which signals a process ignores."""

from __future__ import annotations

from pathlib import Path

from h2o_runtime.process import STOPPING


def ignores_signals(process: int) -> bool:
    """Whether it ignores those that end a command: Ctrl-C and a closed terminal reach its whole group."""
    status = Path(f"/proc/{process}/status").read_text()
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    return all(ignored >> (number - 1) & 1 for number in STOPPING)
