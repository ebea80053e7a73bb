"""The contract between the runtime and the place where its arrays lie.

On a GPU work is only enqueued: a call returns before its result exists. What the host may look at comes from
`download`, which waits.
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
    """Makes arrays, and moves their content. Calls take effect in the order in which they are made."""

    name: str
    memory: str  # where its addresses point, in ONNX Runtime's words

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Tensor:
        """Raises BackendError when there is not enough memory."""

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Tensor:
        """As `empty`, with all elements 0."""

    def upload(self, source: NDArray[Any], target: Tensor) -> None:
        """target = source, of the same shape and dtype. The source may be changed at once."""

    def download(self, source: Tensor) -> NDArray[Any]:
        """What `source` holds, on the host. Waits; on the host it is the array itself. Only to be read."""

    def copy(self, source: Tensor, target: Tensor) -> None: ...

    def clear(self, target: Tensor) -> None:
        """All elements 0."""

    def write_integers(self, target: Tensor, values: Sequence[int]) -> None:
        """target = values, at most 8 of them, int64. Dense graphs that come now see them. Never waits."""

    def flow(self, tiles: list[Span]) -> Flow:
        """For one prefill whose dense graphs run on these rows at a time."""

    def stopwatch(self, phases: Sequence[str]) -> Stopwatch:
        """For one prefill, with the policy's phases."""

    def host_memory(self, nbytes: int) -> NDArray[np.uint8]:
        """Memory of the host that it copies from and to fastest."""

    def transfers(self, drop: Callable[[NDArray[Any]], None]) -> Transfers:
        """Copies beside its work. `drop` may be told what of the host's memory is not needed for a while."""

    def synchronize(self) -> None:
        """Wait for all work."""


class Flow(Protocol):
    """Order between dense graphs and attention within one prefill, where the two can run at the same time.

    A layer's attention begins when its first rows are there, and the next layer's dense graph need not wait
    for attention to other rows than its own.
    """

    def layer(self, dense: Callable[[int], None]) -> AbstractContextManager[None]:
        """Around one layer. `dense(i)` runs its dense graph on tile i; the flow calls it once a tile, in order.

        When, is the flow's own choice: some before attention begins, others while it goes on. It may wait, so that
        the host never is far ahead.
        """

    def needs(self, stop: int) -> None:
        """Attention goes on with rows below `stop`: the layer's dense graph must be done with them."""

    def finished(self, stop: int) -> None:
        """Attention output of all rows below `stop` is final in this layer."""

    def join(self) -> None:
        """Dense graphs and attention that come now follow all dense graphs and all attention before."""
