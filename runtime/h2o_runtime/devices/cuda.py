"""One NVIDIA GPU with two lanes of work: dense graphs, and attention with all that belongs to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from h2o_plugins import load_cuda_kernels
from h2o_runtime.devices.cuda_array import CudaArray
from h2o_runtime.devices.cuda_flow import CudaFlow, CudaStopwatch
from h2o_runtime.errors import BackendError
from h2o_runtime.schedule import Span

if TYPE_CHECKING:
    from h2o_plugins._cuda import Event, Stream


class CudaDevice:
    """Arrays on the first GPU that the process sees.

    Everything but dense graphs runs in the attention lane. `upload` and `download` meet both lanes; the others
    leave the order between the two to a `CudaFlow`.

    Raises h2o_plugins.NativeKernelsMissing on construction where the module was not built, BackendError where
    there is no GPU.
    """

    name = "cuda"

    def __init__(self) -> None:
        self.module = load_cuda_kernels()
        if not self.module.device_count():
            raise BackendError(
                "no NVIDIA GPU was found: use --device cpu, or check the driver with nvidia-smi"
            )
        self.memory: str = self.module.MEMORY
        self.dense_lane: Stream = self.module.Stream()
        self.attention_lane: Stream = self.module.Stream()
        self._mark: Event = self.module.Event()
        self._uploads = _Staging(self)
        self._downloads = _Staging(self)
        self._timing_events: list[Event] = []

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> CudaArray:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            owner = self.module.Memory(max(nbytes, 1))
        except MemoryError:
            free, total = self.module.memory_info()
            raise BackendError(
                f"the GPU has {free >> 20:,} of {total >> 20:,} MiB free, and {math.ceil(nbytes / 2**20):,} "
                "MiB more are needed: lower the context, or stop what else uses the GPU"
            ) from None
        return CudaArray(owner.address, shape, dtype, owner)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> CudaArray:
        array = self.empty(shape, dtype)
        self.clear(array)
        return array

    def upload(self, source: NDArray[Any], target: CudaArray) -> None:
        _check_alike(source, target)
        if not source.nbytes:
            return
        staged = self._uploads.take(source.nbytes).view(source.dtype).reshape(source.shape)
        staged[:] = source
        self.join()
        self.attention_lane.upload(staged, target.address)
        self._uploads.release(self.attention_lane)
        self._order(self.attention_lane, self.dense_lane)

    def download(self, source: CudaArray) -> NDArray[Any]:
        """The array is the device's: it holds until the next download."""
        flat = self._downloads.take(source.nbytes)
        result: NDArray[Any] = flat.view(source.dtype).reshape(source.shape)
        self.join()
        if source.nbytes:
            self.attention_lane.download(source.address, result)
        self.attention_lane.synchronize()
        return result

    def copy(self, source: CudaArray, target: CudaArray) -> None:
        _check_alike(source, target)
        if source.nbytes:
            self.attention_lane.copy(source.address, target.address, source.nbytes)

    def clear(self, target: CudaArray) -> None:
        if target.nbytes:
            self.attention_lane.clear(target.address, target.nbytes)

    def gather_scores(self, score: CudaArray, positions: CudaArray, out: CudaArray) -> None:
        heads, slots = positions.shape
        self.module.score_gather(
            self.attention_lane,
            score_heads=heads,
            slots=slots,
            memory=positions.address,
            score=score.address,
            out=out.address,
        )

    def scatter_scores(self, score: CudaArray, positions: CudaArray, values: CudaArray, add: bool) -> None:
        heads, slots = positions.shape
        self.module.score_update(
            self.attention_lane,
            score_heads=heads,
            slots=slots,
            memory=positions.address,
            values=values.address,
            replace=not add,
            score=score.address,
        )

    def flow(self, tiles: list[Span]) -> CudaFlow:
        return CudaFlow(self, tiles)

    def stopwatch(self) -> CudaStopwatch:
        return CudaStopwatch(self, self._timing_events)

    def join(self) -> None:
        """Each lane goes on only when both are done with what they have now."""
        self._order(self.dense_lane, self.attention_lane)
        self._order(self.attention_lane, self.dense_lane)

    @contextmanager
    def one_lane(self) -> Iterator[None]:
        """All work goes to the dense lane: where nothing can overlap, and where it is recorded."""
        attention_lane = self.attention_lane
        self.attention_lane = self.dense_lane
        try:
            yield
        finally:
            self.attention_lane = attention_lane

    def synchronize(self) -> None:
        self.dense_lane.synchronize()
        self.attention_lane.synchronize()

    def _order(self, first: Stream, second: Stream) -> None:
        """What `second` gets from now on comes after what `first` has so far."""
        self._mark.record(first)
        second.wait(self._mark)


class _Staging:
    """Pinned host memory that one copy at a time passes through. Grows to the largest copy."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._bytes: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._free: Event = device.module.Event()

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Its first bytes, once the last copy is done with them."""
        self._free.synchronize()
        if len(self._bytes) < nbytes:
            self._bytes = self._device.module.PinnedMemory(nbytes).array()
        return self._bytes[:nbytes]

    def release(self, lane: Stream) -> None:
        """The copy that was enqueued last on `lane` is the one to wait for."""
        self._free.record(lane)


def _check_alike(source: Any, target: CudaArray) -> None:
    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError(f"{source.shape} {source.dtype} cannot become {target.shape} {target.dtype}")
