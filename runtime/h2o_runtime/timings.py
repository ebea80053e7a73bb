"""Where the time of a prefill goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class PrefillTimer:
    """Seconds by kind of work, summed over layers and tiles."""

    dense: float = 0.0  # dense graphs
    phase1: float = 0.0  # attention inside chunks; under policy full, all attention
    phase2: float = 0.0  # memory attention, scores, selection
    tail: float = 0.0  # the dense tail

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, kind, getattr(self, kind) + time.perf_counter() - begin)
