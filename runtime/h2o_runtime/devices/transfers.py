"""Copies between host memory and a device's memory that run while the device works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.devices.tensor import Tensor

BLOCK_BYTES = 4 << 20  # bytes per copy
Array = NDArray[Any]
Runs: TypeAlias = Sequence[tuple[int, int]]  # of rows: the first one, and one past the last; rising


class Transfers(Protocol):
    """Copies run one after the other, in the order of the requests.

    loaded, stored  bytes so far, to the device and from it
    busy, waited    seconds that copies took, and that the device's work waited for them; None: not known
    """

    loaded: int
    stored: int

    @property
    def busy(self) -> float | None: ...

    @property
    def waited(self) -> float | None: ...

    def load(self, source: Array, target: Tensor, runs: Runs | None = None) -> None:
        """Enqueue target = source, where source is a `host` array of the same shape and dtype; with `runs`,
        these rows only.
        """

    def store(self, source: Tensor, target: Array) -> None:
        """Enqueue target = source."""

    def follow(self) -> None:
        """Later copies wait for all work given to the device so far."""

    def mark(self) -> int:
        """A mark that stands for all copies so far."""

    def wait(self, mark: int) -> None:
        """Later work of the device waits for the copies of `mark`."""


class HostTransfers:
    """A thread that copies. The device is the host: its earlier work is complete, and it waits by waiting
    here.

    `drop` is called with the host's copied rows, which are not needed for a while.
    """

    def __init__(self, drop: Callable[[Array], None] = lambda rows: None) -> None:
        self.loaded = self.stored = 0
        self.waited = 0.0
        self._asked = 0
        self._drop = drop
        self._progress = _Progress()
        self._queue: SimpleQueue[_Copy] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> float:
        return self._progress.busy

    def load(self, source: Array, target: Array, runs: Runs | None = None) -> None:
        runs = [(0, len(source))] if runs is None else runs
        self.loaded += sum(source[start:stop].nbytes for start, stop in runs)
        self._ask(source, target, source, runs)

    def store(self, source: Array, target: Array) -> None:
        self.stored += source.nbytes
        self._ask(source, target, target, [(0, len(source))])

    def follow(self) -> None:
        pass

    def mark(self) -> int:
        return self._asked

    def wait(self, mark: int) -> None:
        begin = time.perf_counter()
        self._progress.wait(mark)
        self.waited += time.perf_counter() - begin

    def _ask(self, source: Array, target: Array, host: Array, runs: Runs) -> None:
        if self._thread is None:
            arguments = (self._queue, self._progress, self._drop)
            self._thread = threading.Thread(target=_copy_all, args=arguments, name="copies", daemon=True)
            self._thread.start()
        self._asked += 1
        self._queue.put(_Copy(source, target, host, runs))


@dataclass(frozen=True)
class _Copy:
    """target = source in these runs of rows; `host` is the one of the two in host memory."""

    source: Array
    target: Array
    host: Array
    runs: Runs

    def make(self, drop: Callable[[Array], None]) -> None:
        """For scattered runs, the whole extent is dropped once: this costs no more than dropping one
        block.
        """
        rows, done, since = max(1, BLOCK_BYTES // max(self.source[:1].nbytes, 1)), 0, -1
        for begin, end in self.runs:
            for start in range(begin, end, rows):
                block = slice(start, min(start + rows, end))
                np.copyto(self.target[block], self.source[block])
                since = start if since < 0 else since
                done += block.stop - start
                if done >= rows:
                    drop(self.host[since : block.stop])
                    done, since = 0, -1
        if done:
            drop(self.host[since : self.runs[-1][1]])


class _Progress:
    """The thread's progress. An error of the thread is raised in the call that waits."""

    def __init__(self) -> None:
        self.busy = 0.0
        self._done = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def wait(self, mark: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._done >= mark or self._error is not None)
            if self._error is not None:
                raise self._error

    def step(self, seconds: float, error: BaseException | None) -> None:
        with self._changed:
            self.busy += seconds
            self._done += 1
            self._error = self._error or error
            self._changed.notify_all()


def _copy_all(queue: SimpleQueue[_Copy], progress: _Progress, drop: Callable[[Array], None]) -> None:
    while True:
        copy = queue.get()
        begin, error = time.perf_counter(), None
        try:
            copy.make(drop)
        except BaseException as raised:
            error = raised
        del copy  # it holds no reference while it waits
        progress.step(time.perf_counter() - begin, error)
