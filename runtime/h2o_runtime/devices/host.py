"""The host's own memory: every call is complete when it returns."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from h2o_runtime.devices.device import Device
from h2o_runtime.devices.timings import PrefillTimer
from h2o_runtime.devices.transfers import HostTransfers
from h2o_runtime.schedule import Span

LINE, HUGE_PAGE = 64, 2 << 20  # bytes


class HostDevice:
    """NumPy arrays."""

    name = "cpu"
    memory = "cpu"

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """The operating system commits memory as it is written."""
        return _aligned(np.empty, shape, np.dtype(dtype))

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        return _aligned(np.zeros, shape, np.dtype(dtype))

    def committing(self) -> Device:
        return CommittingHost()

    def upload(self, source: NDArray[Any], target: NDArray[Any]) -> None:
        target[:] = source

    def download(self, source: NDArray[Any]) -> NDArray[Any]:
        return source

    def copy(self, source: NDArray[Any], target: NDArray[Any]) -> None:
        target[:] = source

    copy_beside_dense = copy

    def clear(self, target: NDArray[Any]) -> None:
        target[:] = 0

    def write_integers(self, target: NDArray[Any], values: Sequence[int]) -> None:
        target[:] = values

    def flow(self, tiles: list[Span]) -> HostFlow:
        return HostFlow(len(tiles))

    def stopwatch(self, phases: Sequence[str]) -> PrefillTimer:
        return PrefillTimer(phases)

    def host_memory(self, nbytes: int) -> NDArray[np.uint8]:
        return np.empty(nbytes, np.uint8)

    def transfers(self, drop: Callable[[NDArray[Any]], None]) -> HostTransfers:
        return HostTransfers(drop)

    def synchronize(self) -> None:
        pass


class CommittingHost(HostDevice):
    """Takes the memory of an array from the system at once. Zeroing pages costs about as much as copying into them,
    and much more on a virtual machine whose host gives them only then.
    """

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        return _touched(super().empty(shape, dtype))

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        return _touched(super().zeros(shape, dtype))


def _touched(array: NDArray[Any]) -> NDArray[Any]:
    """With a zero written into each page."""
    array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE] = 0
    return array


def _aligned(
    make: Callable[[int, DTypeLike], NDArray[Any]], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """So that a vector load never crosses a cache line, and a cache uses huge pages."""
    size = math.prod(shape) * dtype.itemsize
    align = HUGE_PAGE if size >= HUGE_PAGE else LINE
    room = make(size + align, np.uint8)
    begin = -room.ctypes.data % align
    return room[begin : begin + size].view(dtype).reshape(shape)


class HostFlow:
    """Nothing to order: earlier calls are complete. A layer's dense graphs all run first."""

    def __init__(self, tiles: int = 0) -> None:
        self._tiles = tiles

    @contextmanager
    def layer(self, dense: Callable[[int], None]) -> Iterator[None]:
        for tile in range(self._tiles):
            dense(tile)
        yield

    def needs(self, stop: int) -> None:
        pass

    def finished(self, stop: int) -> None:
        pass

    def join(self) -> None:
        pass
