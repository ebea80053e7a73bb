"""Copies between host memory and a device's memory that run while the device works."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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

    def mark(self) -> Any:
        """A mark that stands for all copies so far; 0 stands for none."""

    def wait(self, mark: Any) -> None:
        """Later work of the device waits for the copies of `mark`."""


class HostTransfers:
    """A thread that copies. The device is the host: its earlier work is complete, and it waits by waiting
    here.

    `drop` is called with the host's copied rows, which are not needed for a while.
    """

    def __init__(self, drop: Callable[[Array], None] = lambda rows: None) -> None:
        self.loaded = self.stored = 0
        self.busy = self.waited = 0.0
        self._drop = drop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="copies")
        self._last: Future[None] | None = None
        self._error: BaseException | None = None

    def load(self, source: Array, target: Array, runs: Runs | None = None) -> None:
        runs = [(0, len(source))] if runs is None else runs
        self.loaded += sum(source[start:stop].nbytes for start, stop in runs)
        self._last = self._thread.submit(self._copy, source, target, source, runs)

    def store(self, source: Array, target: Array) -> None:
        self.stored += source.nbytes
        self._last = self._thread.submit(self._copy, source, target, target, [(0, len(source))])

    def follow(self) -> None:
        pass

    def mark(self) -> Future[None] | None:
        return self._last

    def wait(self, mark: Any) -> None:
        """Raises the first error of the thread."""
        if mark:
            begin = time.perf_counter()
            mark.result()
            self.waited += time.perf_counter() - begin

    def _copy(self, source: Array, target: Array, host: Array, runs: Runs) -> None:
        """target = source in these runs of rows; `host` is the one of the two in host memory.

        For scattered runs, the whole extent is dropped once: this costs no more than dropping one block.
        """
        if self._error is not None:
            raise self._error
        begin = time.perf_counter()
        try:
            rows, done, since = max(1, BLOCK_BYTES // max(source[:1].nbytes, 1)), 0, -1
            for first, end in runs:
                for start in range(first, end, rows):
                    block = slice(start, min(start + rows, end))
                    np.copyto(target[block], source[block])
                    since = start if since < 0 else since
                    done += block.stop - start
                    if done >= rows:
                        self._drop(host[since : block.stop])
                        done, since = 0, -1
            if done:
                self._drop(host[since : runs[-1][1]])
        except BaseException as error:
            self._error = error
            raise
        finally:
            self.busy += time.perf_counter() - begin
