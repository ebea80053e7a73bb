"""What the host enqueues, with vector clocks: two uses of the same bytes, one of them a write, must be in order.

The order is what streams, events and waits of the host give (Lamport 1978; vector clocks: Fidge 1988,
Mattern 1989).
Nothing runs, so no schedule can hide a missing wait.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Clock = dict[int, int]  # stream -> how many of its operations are done
RUNTIME = str(Path("runtime") / "h2o_runtime")
HELPERS = "Lanes."
HOST = -1  # the stream of what the host itself reads and writes


def join(clock: Clock, other: Clock) -> None:
    for stream, done in other.items():
        clock[stream] = max(clock.get(stream, 0), done)


@dataclass(frozen=True)
class Use:
    """Bytes that an operation reads or writes, and what it calls them."""

    start: int
    stop: int
    writes: bool
    name: str = ""

    def __str__(self) -> str:
        return f"{'writes' if self.writes else 'reads'} {self.name or 'what it copies'}"


@dataclass(frozen=True)
class _Done:
    use: Use
    stream: int
    number: int  # among its stream's operations, from 1
    label: str


@dataclass
class _Allocation:
    start: int
    stop: int
    uses: list[_Done] = field(default_factory=list)


class Order:
    """`left_out`: the place in the runtime whose waits are ignored, as `places` lists them."""

    def __init__(self, left_out: str | None = None) -> None:
        self.races: list[str] = []
        self.places: dict[str, int] = {}
        self.operations = 0
        self._left_out = left_out
        self._host: Clock = {HOST: 0}
        self._streams: dict[int, Clock] = {}
        self._starts: list[int] = []
        self._allocations: list[_Allocation] = []
        self._next_address = 1 << 40

    # Memory

    def allocate(self, nbytes: int) -> int:
        address = self._next_address
        self._next_address += -(-max(nbytes, 1) // 256) * 256 + 256
        self.register(address, nbytes)
        return address

    def register(self, address: int, nbytes: int) -> None:
        """Memory of the host that copies read and write."""
        at = bisect_right(self._starts, address)
        self._starts.insert(at, address)
        self._allocations.insert(at, _Allocation(address, address + nbytes))

    def find(self, address: int) -> _Allocation | None:
        at = bisect_right(self._starts, address) - 1
        found = self._allocations[at] if at >= 0 else None
        return found if found is not None and address < found.stop else None

    # Streams and events

    def new_stream(self) -> int:
        self._streams[len(self._streams)] = {}
        return len(self._streams) - 1

    def run(self, stream: int, label: str, uses: Iterable[Use]) -> None:
        """An operation, enqueued now."""
        self.operations += 1
        clock = self._streams[stream]
        join(clock, self._host)
        clock[stream] = clock.get(stream, 0) + 1
        self._check(stream, clock, label, uses)

    def host(self, label: str, use: Use) -> None:
        """What the host itself does with memory that copies reach, now."""
        self._host[HOST] += 1
        self._check(HOST, self._host, label, [use])

    def moment(self, stream: int) -> Clock:
        """For an event: all that the stream has so far."""
        clock = self._streams[stream]
        join(clock, self._host)
        return dict(clock)

    def wait(self, stream: int, moment: Clock) -> None:
        if not self._is_left_out():
            join(self._streams[stream], moment)

    def wait_on_host(self, moment: Clock) -> None:
        if self._is_left_out():
            return
        join(self._host, moment)
        for allocation in self._allocations:  # all that comes will come after these
            uses = allocation.uses
            allocation.uses = [one for one in uses if self._host.get(one.stream, 0) < one.number]

    def _is_left_out(self) -> bool:
        place = self._place()
        self.places[place] = self.places.get(place, 0) + 1
        return place == self._left_out

    @staticmethod
    def _place() -> str:
        """The runtime's statement that waits; in place of a helper of the lanes, the one that calls it."""
        frame: Any = sys._getframe(3)
        while frame and (
            RUNTIME not in frame.f_code.co_filename or frame.f_code.co_qualname.startswith(HELPERS)
        ):
            frame = frame.f_back
        if not frame:
            return "outside of the runtime"
        return f"{frame.f_code.co_qualname}, line {frame.f_lineno}"

    def _check(self, stream: int, clock: Clock, label: str, uses: Iterable[Use]) -> None:
        for use in uses:
            if use.start >= use.stop:
                continue
            allocation = self.find(use.start)
            if allocation is None or use.stop > allocation.stop:
                self.races.append(f"{label} {use} beyond what was allocated")
                continue
            for before in allocation.uses:
                if not (before.use.writes or use.writes):
                    continue
                if before.use.start >= use.stop or use.start >= before.use.stop:
                    continue
                if clock.get(before.stream, 0) < before.number:
                    self.races.append(
                        f"{label} {use} and does not wait for {before.label}, which {before.use}"
                    )
            allocation.uses.append(_Done(use, stream, clock[stream], label))


def of_array(array: np.ndarray[Any, Any], writes: bool) -> Use:
    start = array.__array_interface__["data"][0]
    return Use(start, start + array.nbytes, writes)
