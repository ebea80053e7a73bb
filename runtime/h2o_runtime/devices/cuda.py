"""One NVIDIA GPU: its memory, two lanes of work, and copies beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from h2o_plugins import load_cuda_kernels
from h2o_runtime.devices.cuda_flow import CudaFlow, CudaStopwatch, Lanes
from h2o_runtime.devices.tensor import ALIGNMENT
from h2o_runtime.errors import BackendError
from h2o_runtime.schedule import Span

if TYPE_CHECKING:
    from h2o_plugins._cuda import Array, Event, Stream
    from h2o_runtime.devices.transfers import Runs

# CUDA counts only what is free at once.
_CACHED_FILES = (
    "; it shares the host's memory, where cached files count as used, and `echo 3 | sudo tee "
    "/proc/sys/vm/drop_caches` frees theirs"
)


class CudaDevice:
    """Arrays on the first GPU that the process sees.

    All work except dense graphs runs in the attention lane. The dense lane waits for an `upload`, and a
    `download` waits for both lanes. For other calls, a `CudaFlow` orders the two lanes. Raises
    h2o_plugins.NativeKernelsMissing on construction if the module was not built, BackendError if there is no
    GPU.
    """

    name = "cuda"

    def __init__(self) -> None:
        self.module = load_cuda_kernels()
        if not self.module.device_count():
            raise BackendError(
                "no NVIDIA GPU was found: use `device=cpu`, or check the driver with nvidia-smi"
            )
        self.memory: str = self.module.MEMORY
        self.lanes = Lanes(self.module)
        self._uploads = _Staging(self)
        self._downloads = _Staging(self)
        self._timing_events: list[Event] = []

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            # Whole multiples: the emulation aligns the end of an allocation, not its beginning.
            owner = self.module.Memory(max(-(-nbytes // ALIGNMENT), 1) * ALIGNMENT)
        except MemoryError:
            free, total = self.module.memory_info()
            cached = _CACHED_FILES if self.module.shares_host_memory() else ""
            raise BackendError(
                f"the GPU has {free >> 20:,} of {total >> 20:,} MiB free, and {math.ceil(nbytes / 2**20):,} "
                f"MiB more are needed: lower the context, or stop what else uses the GPU{cached}"
            ) from None
        array: Array = self.module.Array(owner.address, shape, np.dtype(dtype), owner)
        return array

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        array = self.empty(shape, dtype)
        self.clear(array)
        return array

    def committing(self) -> CudaDevice:
        return self

    def upload(self, source: NDArray[Any], target: Array) -> None:
        _check_alike(source, target)
        if not source.nbytes:
            return
        staged = self._uploads.take(source.nbytes).view(source.dtype).reshape(source.shape)
        staged[:] = source
        self.lanes.attention.upload(staged, target.address)
        self._uploads.release(self.lanes.attention)
        self.lanes.order(self.lanes.attention, self.lanes.dense)

    def download(self, source: Array) -> NDArray[Any]:
        """The device owns the array: it is valid until the next download."""
        flat = self._downloads.take(source.nbytes)
        result: NDArray[Any] = flat.view(source.dtype).reshape(source.shape)
        self.lanes.join()
        if source.nbytes:
            self.lanes.attention.download(source.address, result)
        self.lanes.attention.synchronize()
        return result

    def copy(self, source: Array, target: Array) -> None:
        self._copy(self.lanes.attention, source, target)

    def copy_beside_dense(self, source: Array, target: Array) -> None:
        self._copy(self.lanes.dense, source, target)

    def _copy(self, lane: Stream, source: Array, target: Array) -> None:
        _check_alike(source, target)
        if source.nbytes:
            lane.copy(source.address, target.address, source.nbytes)

    def clear(self, target: Array) -> None:
        if target.nbytes:
            self.lanes.attention.clear(target.address, target.nbytes)

    def write_integers(self, target: Array, values: Sequence[int]) -> None:
        self.lanes.dense.write_integers(target.address, list(values))

    def flow(self, tiles: list[Span]) -> CudaFlow:
        return CudaFlow(self.lanes, tiles)

    def stopwatch(self, phases: Sequence[str]) -> CudaStopwatch:
        return CudaStopwatch(self.lanes, self._timing_events, phases)

    def host_memory(self, nbytes: int) -> NDArray[np.uint8]:
        """Raises BackendError if not enough memory can be pinned."""
        try:
            memory: NDArray[np.uint8] = self.module.PinnedMemory(nbytes).array()
        except (MemoryError, self.module.CudaError) as error:
            raise BackendError(
                f"the host lacks {math.ceil(nbytes / 2**20):,} MiB of memory for the offloaded layers: lower "
                "`context`, or give the cache a file"
            ) from error
        return memory

    def transfers(self, drop: Callable[[NDArray[Any]], None]) -> CudaTransfers:
        return CudaTransfers(self.lanes)

    def synchronize(self) -> None:
        self.lanes.synchronize()


class _Staging:
    """A pinned host buffer for one copy at a time. Grows to the largest copy."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._bytes: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._free: Event = device.module.Event()

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Its first bytes, once the last copy has finished with them."""
        self._free.synchronize()
        if len(self._bytes) < nbytes:
            self._bytes = self._device.module.PinnedMemory(nbytes).array()
        return self._bytes[:nbytes]

    def release(self, lane: Stream) -> None:
        """Wait for the last copy on `lane` before the buffer is used again."""
        self._free.record(lane)


def _check_alike(source: Any, target: Array) -> None:
    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError(f"{source.shape} {source.dtype} cannot become {target.shape} {target.dtype}")


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
