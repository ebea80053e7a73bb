"""The two lanes of a GPU's work; their order and times in one prefill."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from h2o_runtime.devices.timings import DENSE, PrefillTimer
from h2o_runtime.schedule import Span

if TYPE_CHECKING:
    from h2o_plugins._cuda import Event, Stream

# Tiles and attention batches that the host may be ahead of the GPU: enough to keep it busy, and few enough to
# finish soon after a cancellation.
AHEAD = 2


class Lanes:
    """`dense` is for dense graphs, `attention` for attention and related work.

    Attention is a chain of small launches beside dense graphs that fill the GPU, so it has the higher
    priority.
    """

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.dense: Stream = module.Stream()
        self.attention: Stream = module.Stream(urgent=True)
        self._mark: Event = module.Event()

    def join(self) -> None:
        """Each lane continues only when both have finished their current work."""
        self.order(self.dense, self.attention)
        self.order(self.attention, self.dense)

    def order(self, first: Stream, second: Stream) -> None:
        """Later work on `second` waits for the work so far on `first`."""
        self._mark.record(first)
        second.wait(self._mark)

    @contextmanager
    def one(self) -> Iterator[None]:
        """All work uses the dense lane: if nothing can overlap, and while recording."""
        attention = self.attention
        self.attention = self.dense
        try:
            yield
        finally:
            self.attention = attention

    def synchronize(self) -> None:
        """Wait until both lanes are idle."""
        self.dense.synchronize()
        self.attention.synchronize()


class _Ends:
    """Events for the ends of numbered work. The last `count` numbers have one; work that was not done has ended."""

    def __init__(self, lanes: Lanes, count: int) -> None:
        self._events: list[Event] = [lanes.module.Event() for _ in range(count)]

    def __getitem__(self, number: int) -> Event:
        return self._events[number % len(self._events)]


class CudaFlow:
    """Events between the lanes: a tile's attention follows its dense graph, and the next layer's dense graph
    follows it.

    While the attention lane works on some tiles, the dense lane computes the layer's next tiles, or the next
    layer's first. To keep both busy, the host enqueues in turn what attention needs, attention, and the same
    number of tiles ahead. If all dense graphs of a layer came first, attention would wait for the last of
    them.
    """

    def __init__(self, lanes: Lanes, tiles: list[Span]) -> None:
        self._lanes = lanes
        self._stops = [tile.stop for tile in tiles]
        # Events are many of the calls that a layer costs the host, so each has several uses.
        self._dense_done = _Ends(lanes, max(len(tiles), AHEAD))  # of dense graphs, over all layers
        self._attention_done = _Ends(lanes, max(2 * len(tiles), 1))  # of tiles, over this layer and the last
        self._own_pace = _Ends(lanes, AHEAD)  # of attention's batches that end no tile
        self._pace = [self._own_pace[batch] for batch in range(AHEAD)]  # of attention's last batches
        self._started = 0  # dense graphs so far, over all layers
        self._batches = 0  # of attention, over all layers
        self._dense: Callable[[int], None] = lambda tile: None
        self._first = -len(tiles)  # number of this layer's first dense graph
        self._enqueued = len(
            tiles
        )  # of this layer's dense graphs; outside a layer nothing is left to enqueue
        self._wanted = 0  # tiles of this layer that attention asked for
        self._ahead = 1  # tiles in its last request
        self._finished = 0  # tiles of this layer with finished attention

    def layer(self, dense: Callable[[int], None]) -> CudaFlow:
        self._dense = dense
        self._first += len(self._stops)
        self._enqueued = self._wanted = self._finished = 0
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self._enqueue(len(self._stops))

    def _enqueue(self, tiles: int) -> None:
        """Enqueue the layer's dense graphs up to tile `tiles` - 1."""
        lane, count = self._lanes.dense, len(self._stops)
        for tile in range(self._enqueued, min(tiles, count)):
            self._dense_done[self._started - AHEAD].synchronize()
            lane.wait(self._attention_done[self._first + tile - count])  # of the previous layer
            self._dense(tile)
            self._dense_done[self._started].record(lane)
            self._started += 1
            self._enqueued = tile + 1

    def needs(self, stop: int) -> None:
        tile = bisect_left(self._stops, stop)
        self._ahead, before = max(tile + 1 - self._wanted, 1), self._wanted
        self._wanted = tile + 1
        self._enqueue(self._wanted)
        self._pace[self._batches % AHEAD].synchronize()
        if self._wanted > before:
            self._lanes.attention.wait(self._dense_done[self._first + tile])

    def finished(self, stop: int) -> None:
        lane, end = self._lanes.attention, self._own_pace[self._batches]
        before = self._finished
        while self._finished < len(self._stops) and self._stops[self._finished] <= stop:
            end = self._attention_done[self._first + self._finished]
            end.record(lane)
            self._finished += 1
        if self._finished == before:
            end.record(lane)
        self._pace[self._batches % AHEAD] = end
        self._batches += 1
        self._enqueue(self._wanted + self._ahead)

    def join(self) -> None:
        self._lanes.join()


class _Phase:
    """Around work on a lane. A class of its own takes a third of the time of a generator."""

    __slots__ = ("_lane", "_start", "_stop")

    def __init__(self, lane: Stream, start: Event, stop: Event) -> None:
        self._lane, self._start, self._stop = lane, start, stop

    def __enter__(self) -> None:
        self._start.record(self._lane)

    def __exit__(self, *_: object) -> None:
        self._stop.record(self._lane)


class CudaStopwatch:
    """Pairs of events around phases of work. The device owns the events; they serve one prefill at a time."""

    def __init__(self, lanes: Lanes, events: list[Event], phases: Sequence[str]) -> None:
        self._lanes = lanes
        self._events = events
        self._phases = phases
        self._measured: list[str] = []

    def measure(self, phase: str) -> _Phase:
        lane = self._lanes.dense if phase == DENSE else self._lanes.attention
        first = 2 * len(self._measured)
        while len(self._events) < first + 2:
            self._events.append(self._lanes.module.Event(timing=True))
        self._measured.append(phase)
        return _Phase(lane, self._events[first], self._events[first + 1])

    def read(self) -> PrefillTimer:
        timer = PrefillTimer(self._phases)
        for index, phase in enumerate(self._measured):
            start, stop = self._events[2 * index : 2 * index + 2]
            stop.synchronize()
            timer.add(phase, stop.milliseconds_since(start) / 1e3)
        return timer
