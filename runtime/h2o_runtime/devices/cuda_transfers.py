"""Copies to and from a GPU, beside its two lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from h2o_runtime.devices.lanes import Lanes

if TYPE_CHECKING:
    from h2o_plugins._cuda import Array, Event, Stream
    from h2o_runtime.devices.transfers import Runs

MOST_EVENTS = 64  # of marks: the newest one covers all older ones


class CudaTransfers:
    """Copies on a stream of its own. The host never waits, so the time that lanes waited is unknown."""

    busy = waited = None

    def __init__(self, lanes: Lanes) -> None:
        self.loaded = self.stored = 0
        self._lanes = lanes
        self._stream: Stream = lanes.module.Stream()
        self._here: Event = lanes.module.Event()
        self._events: list[Event] = [lanes.module.Event() for _ in range(MOST_EVENTS)]
        self._marks = 0

    def load(self, source: NDArray[Any], target: Array, runs: Runs | None = None) -> None:
        for start, stop in [(0, len(source))] if runs is None else runs:
            rows = source[start:stop]
            if rows.nbytes:
                self.loaded += rows.nbytes
                self._stream.upload(rows, target[start:stop].address)

    def store(self, source: Array, target: NDArray[Any]) -> None:
        if source.nbytes:
            self.stored += source.nbytes
            self._stream.download(source.address, target)

    def follow(self) -> None:
        for lane in (self._lanes.dense, self._lanes.attention):
            self._here.record(lane)
            self._stream.wait(self._here)

    def mark(self) -> int:
        self._events[self._marks % MOST_EVENTS].record(self._stream)
        self._marks += 1
        return self._marks

    def wait(self, mark: int) -> None:
        if not mark:
            return
        newest = mark if self._marks - mark < MOST_EVENTS else self._marks
        event = self._events[(newest - 1) % MOST_EVENTS]
        self._lanes.dense.wait(event)
