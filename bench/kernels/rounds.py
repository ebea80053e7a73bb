"""Interleaved rounds: all contenders meet the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def measure(works: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds by contender, `median_ms` and `least_ms`; a round before the others is not counted."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {
        name: {"median_ms": statistics.median(taken[1:]), "least_ms": min(taken[1:])}
        for name, taken in times.items()
    }
