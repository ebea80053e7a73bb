"""The interface between the runtime and the memory of its arrays.

On a GPU, calls only enqueue work and return before the result exists. `download` waits and returns what the
host may read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from h2o_runtime.devices.tensor import Tensor
from h2o_runtime.devices.timings import Stopwatch
from h2o_runtime.devices.transfers import Transfers
from h2o_runtime.schedule import Span


class Device(Protocol):
    """Allocates arrays and copies their contents. Calls take effect in the order in which they are made."""

    name: str
    memory: str  # the device of its addresses, as ONNX Runtime names it

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Tensor:
        """Raises BackendError if memory runs out."""

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Tensor:
        """As `empty`, with all elements 0."""

    def committing(self) -> Device:
        """The same device. Its arrays have their memory from the start, where it would otherwise come with the
        first write.
        """

    def upload(self, source: NDArray[Any], target: Tensor) -> None:
        """target = source, of the same shape and dtype. The caller may change the source at once."""

    def download(self, source: Tensor) -> NDArray[Any]:
        """The contents of `source` on the host, read-only. Waits; on the host it is the array itself."""

    def copy(self, source: Tensor, target: Tensor) -> None:
        """target = source, of the same shape and dtype, in order with attention."""

    def copy_beside_dense(self, source: Tensor, target: Tensor) -> None:
        """As `copy`, in order with dense graphs: of what only they read and write."""

    def clear(self, target: Tensor) -> None:
        """All elements 0."""

    def write_integers(self, target: Tensor, values: Sequence[int]) -> None:
        """target = values, at most 8 int64 values. Later dense graphs see them. Never waits."""

    def flow(self, tiles: list[Span]) -> Flow:
        """For one prefill whose dense graphs run on this many rows at a time."""

    def stopwatch(self, phases: Sequence[str]) -> Stopwatch:
        """For one prefill, with the policy's phases."""

    def host_memory(self, nbytes: int) -> NDArray[np.uint8]:
        """The host memory with the fastest copies to and from the device."""

    def transfers(self, drop: Callable[[NDArray[Any]], None]) -> Transfers:
        """Copies that run beside the device's work. `drop` may be called with host memory that is not needed
        for a while.
        """

    def synchronize(self) -> None:
        """Wait for all work."""


class Flow(Protocol):
    """Orders dense graphs and attention within one prefill, if the two can run at the same time.

    A layer's attention starts when its first rows are ready. The next layer's dense graph waits only for
    attention to its own rows.
    """

    def layer(self, dense: Callable[[int], None]) -> AbstractContextManager[None]:
        """Around one layer. `dense(i)` runs its dense graph on tile i; the flow calls it once per tile, in
        order.

        The flow chooses when: some tiles before attention starts, others during it. It may wait, so that the
        host is never far ahead.
        """

    def needs(self, stop: int) -> None:
        """Attention continues with rows below `stop`: the layer's dense graph must have finished them."""

    def finished(self, stop: int) -> None:
        """Attention output of all rows below `stop` is final in this layer."""

    def join(self) -> None:
        """Later dense graphs and attention come after all earlier dense graphs and attention."""
