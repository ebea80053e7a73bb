"""Memory that sessions take, measured in a process of its own. Such a process loads only what this module needs."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path

from h2o_runtime import Generator
from h2o_runtime.caches import Cache
from h2o_runtime.sessions.session import Session


def _resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def shares(bundle: Path, cache: Cache) -> list[float]:
    """Shares of a cache that are in memory after its session is made: with memory untouched, and committed."""
    found = []
    with Generator.load(bundle, context=64, threads=1, device="cpu", cache=cache) as generator:
        assert not generator.spec.commit
        spec = replace(generator.spec, context=32768)
        for commit in (False, True):
            before = _resident()
            session = Session(replace(spec, commit=commit))
            found.append((_resident() - before) / session.store.nbytes)
            del session
    return found
