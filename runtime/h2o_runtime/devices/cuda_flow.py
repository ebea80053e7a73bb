"""Orders and times the two lanes of one prefill on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from h2o_runtime.devices.lanes import Lanes
from h2o_runtime.devices.timings import DENSE, PrefillTimer
from h2o_runtime.schedule import Span

if TYPE_CHECKING:
    from h2o_plugins._cuda import Event

# Tiles and attention batches that the host may be ahead of the GPU: enough to keep it busy, and few enough to
# finish soon after a cancellation.
AHEAD = 2


class CudaFlow:
    """Events between the lanes: a tile's attention follows its dense graph, and the next layer's dense graph
    follows it.

    While the attention lane works on some tiles, the dense lane computes the layer's next tiles, or the next
    layer's first. To keep both busy, the host enqueues in turn what attention needs, attention, and the same
    number of tiles ahead. If all dense graphs of a layer came first, attention would wait for the last of
    them.
    """

    def __init__(self, lanes: Lanes, tiles: list[Span]) -> None:
        make = lanes.module.Event
        self._lanes = lanes
        self._stops = [tile.stop for tile in tiles]
        self._dense_done: list[Event] = [make() for _ in tiles]
        self._attention_done: list[Event] = [make() for _ in tiles]
        self._pace: list[Event] = [make() for _ in range(AHEAD)]
        self._pace_attention: list[Event] = [make() for _ in range(AHEAD)]
        self._started = 0  # dense graphs so far, over all layers
        self._batches = 0  # of attention, over all layers
        self._dense: Callable[[int], None] = lambda tile: None
        self._enqueued = len(
            tiles
        )  # of this layer's dense graphs; outside a layer nothing is left to enqueue
        self._wanted = 0  # tiles of this layer that attention asked for
        self._ahead = 1  # tiles in its last request
        self._finished = 0  # tiles of this layer with finished attention

    @contextmanager
    def layer(self, dense: Callable[[int], None]) -> Iterator[None]:
        self._dense = dense
        self._enqueued = self._wanted = self._finished = 0
        yield
        self._enqueue(len(self._stops))

    def _enqueue(self, tiles: int) -> None:
        """Enqueue the layer's dense graphs up to tile `tiles` - 1."""
        lane = self._lanes.dense
        for tile in range(self._enqueued, min(tiles, len(self._stops))):
            pace = self._pace[self._started % AHEAD]
            pace.synchronize()
            lane.wait(self._attention_done[tile])  # of the previous layer
            self._dense(tile)
            self._dense_done[tile].record(lane)
            pace.record(lane)
            self._started += 1
            self._enqueued = tile + 1

    def needs(self, stop: int) -> None:
        tile = next(index for index, end in enumerate(self._stops) if end >= stop)
        self._ahead, self._wanted = max(tile + 1 - self._wanted, 1), tile + 1
        self._enqueue(self._wanted)
        self._pace_attention[self._batches % AHEAD].synchronize()
        self._lanes.attention.wait(self._dense_done[tile])

    def finished(self, stop: int) -> None:
        while self._finished < len(self._stops) and self._stops[self._finished] <= stop:
            self._attention_done[self._finished].record(self._lanes.attention)
            self._finished += 1
        self._pace_attention[self._batches % AHEAD].record(self._lanes.attention)
        self._batches += 1
        self._enqueue(self._wanted + self._ahead)

    def join(self) -> None:
        self._lanes.join()


class CudaStopwatch:
    """Pairs of events around phases of work. The device owns the events; they serve one prefill at a time."""

    def __init__(self, lanes: Lanes, events: list[Event], phases: Sequence[str]) -> None:
        self._lanes = lanes
        self._events = events
        self._phases = phases
        self._measured: list[str] = []

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        lane = self._lanes.dense if phase == DENSE else self._lanes.attention
        first = 2 * len(self._measured)
        while len(self._events) < first + 2:
            self._events.append(self._lanes.module.Event(timing=True))
        self._measured.append(phase)
        self._events[first].record(lane)
        try:
            yield
        finally:
            self._events[first + 1].record(lane)

    def read(self) -> PrefillTimer:
        timer = PrefillTimer(self._phases)
        for index, phase in enumerate(self._measured):
            start, stop = self._events[2 * index : 2 * index + 2]
            stop.synchronize()
            timer.add(phase, stop.milliseconds_since(start) / 1e3)
        return timer
