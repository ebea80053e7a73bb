"""Where the time of a prefill goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol


@dataclass
class PrefillTimer:
    """Seconds by kind of work, summed over layers and tiles. Measures by the host's clock."""

    dense: float = 0.0  # dense graphs
    phase1: float = 0.0  # attention inside chunks; under policy full, all attention
    phase2: float = 0.0  # memory attention, scores, selection
    tail: float = 0.0  # the dense tail

    def add(self, kind: str, seconds: float) -> None:
        setattr(self, kind, getattr(self, kind) + seconds)

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(kind, time.perf_counter() - begin)

    def read(self) -> PrefillTimer:
        return self


class Stopwatch(Protocol):
    """Measures kinds of work as `PrefillTimer` names them; kinds may overlap where the device lets them."""

    def measure(self, kind: str) -> AbstractContextManager[None]:
        """Around work of one kind."""

    def read(self) -> PrefillTimer:
        """What was measured so far. May wait for the device."""
