"""Measures how the time of a prefill divides into phases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

DENSE = "dense"  # the phase of dense graphs; the policy names all others


class PrefillTimer:
    """Seconds by phase, summed over layers and tiles. Measured with the host's clock."""

    def __init__(self, phases: Sequence[str] = ()) -> None:
        """phases: phases that are reported even if they take no time."""
        self.seconds: dict[str, float] = dict.fromkeys((DENSE, *phases), 0.0)

    def add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - begin)

    def read(self) -> PrefillTimer:
        """The measurements so far, as a copy that no longer changes."""
        copy = PrefillTimer()
        copy.seconds = dict(self.seconds)
        return copy


class Stopwatch(Protocol):
    """Measures phases of work; they may overlap if the device allows it."""

    def measure(self, phase: str) -> AbstractContextManager[None]:
        """Around work of one phase."""

    def read(self) -> PrefillTimer:
        """The measurements so far. May wait for the device."""
