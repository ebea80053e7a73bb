"""A decode step of several rows on a GPU, of one session or many.

Dense graphs process all rows together. Attention reads each row's own cache: lengths and the addresses of
caches are on the device, so that one recording serves all sessions. A step is padded to the next of a few
sizes, each of which is recorded once. Padding has no length, and attention ends there before it reads or writes
anything.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.caches.stored import Fresh
from h2o_runtime.devices import Tensor
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.errors import BackendError
from h2o_runtime.execution.step_rows import RowsStep, StepRow, place_rows
from h2o_runtime.kv import KV
from h2o_runtime.kv_entry import KV_ENTRY
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.sessions.session import Float32, Session

if TYPE_CHECKING:
    from h2o_plugins._cuda import Graph

log = logging.getLogger(__name__)

SIZES = (1, 2, 4, 8, 16)  # rows of a recording
APART = 32  # int64 from one tensor of numbers to the next: TensorRT's alignment
ENTRY = KV_ENTRY.itemsize // 8  # int64 of a cache


class Recording:
    """Calls that are always the same: a CUDA graph from their second run on.

    The first run allocates for all sizes, which a recording may not.
    """

    def __init__(self, device: CudaDevice, enqueue: Callable[[], None], title: str, possible: bool) -> None:
        """enqueue: makes the calls. title: for the log. possible: whether they can be recorded."""
        self._device, self._enqueue, self._title, self._possible = device, enqueue, title, possible
        self._has_run = False
        self._graph: Graph | None = None

    def run(self) -> None:
        """Run the calls, and wait for their end."""
        lanes = self._device.lanes  # a prefill leaves the lanes joined
        if self._graph is None and self._has_run and self._possible:
            self._graph = self._record()
            self._possible = self._graph is not None
        if self._graph is not None:
            self._graph.launch(lanes.dense)
        else:
            with lanes.one():
                self._enqueue()
        self._has_run = True
        lanes.dense.synchronize()

    def _record(self) -> Graph | None:
        lane, failed = self._device.lanes.dense, self._device.module.CudaError
        collecting = gc.isenabled()
        gc.disable()  # freeing memory while the lane records would end the recording
        lane.begin_capture()
        try:
            with self._device.lanes.one():
                self._enqueue()
            graph = lane.end_capture()
        except BaseException as error:
            with suppress(failed):
                lane.end_capture()
            if not isinstance(error, BackendError | failed):
                raise
            log.warning("decode runs step by step, because it cannot be recorded: %s", error)
            return None
        finally:
            if collecting:
                gc.enable()
        log.info("recorded %s as one CUDA graph", self._title)
        return graph


class RowInputs:
    """What a step of at most `most` rows reads, always in the same memory on the device.

    tokens, positions, lengths  int64 [most]; a length of 0 is padding
    caches  of each layer, int64 [most, 8]: entries of `h2o_runtime.kv_entry`
    new     of each layer, the buffers into which its dense graph writes k and v
    """

    def __init__(self, model: ModelSpec, limit: int, device: CudaDevice) -> None:
        self._device = device
        self._numbers = device.empty((3, APART), np.int64)
        self.tokens, self.positions, self.lengths = (self._numbers[i][:limit] for i in range(3))
        self._caches = device.empty((model.layers, limit, ENTRY), np.int64)
        self.caches = [self._caches[layer] for layer in range(model.layers)]
        self.new = Fresh(model, limit, device).layers
        self._host_numbers = _pinned(device, (3, APART))
        self._host_caches = _pinned(device, (model.layers, limit, ENTRY))
        self._host_caches[:] = 0

    def write(self, rows: Sequence[StepRow], size: int, entries: Sequence[NDArray[np.int64]]) -> None:
        """For a step of `size` rows, of which the last are padding; entries [layers, 8]: the rows' caches."""
        numbers = self._host_numbers
        numbers[:, len(rows) : size] = 0
        place_rows(rows, *numbers)
        lane = self._device.lanes.dense
        lane.upload(numbers, self._numbers.address)
        caches = np.stack(entries, axis=1)
        if not np.array_equal(
            caches, self._host_caches[:, : len(rows)]
        ):  # mostly the sessions of the step before
            self._host_caches[:, : len(rows)] = caches
            lane.upload(self._host_caches, self._caches.address)


class DeviceRows(RowsStep):
    """Steps of the sessions of one loaded model.

    most  rows of one step
    """

    def __init__(
        self,
        model: ModelSpec,
        device: CudaDevice,
        limit: int,
        bind: Callable[[RowInputs, int, Sequence[KV]], Callable[[], Tensor]],
        recordable: bool,
    ) -> None:
        """bind(inputs, rows, caches) gives the call of a step of so many rows, which returns logits [rows, vocab]
        on the device; `caches` are those of some session. recordable: whether its calls can be recorded.
        """
        super().__init__()
        self.limit = max(size for size in SIZES if size <= limit)
        self._inputs = RowInputs(model, self.limit, device)
        answer = device.module.PinnedMemory(4 * self.limit * model.vocab_size).array()
        self._logits: Float32 = answer.view(np.float32).reshape(self.limit, model.vocab_size)
        self._model, self._device, self._bind, self._recordable = model, device, bind, recordable
        self._steps: dict[int, Recording] = {}

    def run(self, rows: Sequence[StepRow]) -> Float32:
        size = next(size for size in SIZES if size >= len(rows))
        found = (self._entry(row.session) for row in rows)
        entries = [entry.view(np.int64) for entry in found if entry is not None]
        self._inputs.write(rows, size, entries)
        if size not in self._steps:
            self._steps[size] = self._step(size, rows[0].session)
        self._steps[size].run()
        return self._logits[: len(rows)]

    def _step(self, size: int, session: Session) -> Recording:
        caches = session.store.fixed_rows()
        assert caches is not None
        step, answer = self._bind(self._inputs, size, caches), self._logits[:size]

        def enqueue() -> None:
            self._device.lanes.dense.download(step().address, answer)

        title = f"the decode step of {self._model.layers} layers with {size} row{'s' if size > 1 else ''}"
        return Recording(self._device, enqueue, title, self._recordable)


def _pinned(device: CudaDevice, shape: tuple[int, ...]) -> NDArray[np.int64]:
    memory = device.module.PinnedMemory(math.prod(shape) * np.dtype(np.int64).itemsize)
    numbers: NDArray[np.int64] = memory.array().view(np.int64).reshape(shape)
    return numbers
