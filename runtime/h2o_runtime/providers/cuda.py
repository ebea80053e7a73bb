"""The attention operators on the CUDA kernels of h2o_plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from h2o_runtime.attention.provider import AttentionShape
from h2o_runtime.attention.sinks import LayerProvider
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.kv import KV
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import CACHE_APPEND, CACHED_ATTENTION, PROMPT_ATTENTION, STEP_ROWS_ATTENTION

if TYPE_CHECKING:
    from h2o_plugins import _cuda

MOST_INTEGERS = 8  # the most that one call reads on the device

MOST_KEY, MOST_VALUE = 576, 512  # elements of a head
ROW_BYTES = 16  # a head's row is a multiple of this


class NativeCudaProvider:
    """Enqueues on the device's attention lane; nothing waits, and nothing is allocated for sizes seen before.

    Steps have their own workspace, because a recording keeps its address.
    """

    name = "native-cuda"
    in_graphs = False

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._kernels: _cuda.Kernels | None = None
        self._integers = device.empty((MOST_INTEGERS,), np.int64)  # read by the next kernel
        self._workspace = device.empty((0,), np.uint8)
        self._step_workspace = device.empty((0,), np.uint8)

    @staticmethod
    def takes(shape: AttentionShape) -> bool:
        sizes = (shape.head_size, MOST_KEY), (shape.value_size, MOST_VALUE)
        return all(size <= limit and size * shape.dtype.itemsize % ROW_BYTES == 0 for size, limit in sizes)

    def activate(self, shape: AttentionShape) -> None:
        # Every step leaves the counters at zero. Steps run one after the other on one stream.
        self._counters = self._device.zeros((MOST_STEP_ROWS, shape.query_heads), np.uint32)
        self._kernels = self._device.module.Kernels(
            **shape.of_kernels,
            counters=self._counters.address,
            integers=self._integers.address,
        )

    def deactivate(self) -> None:
        self._kernels = None

    def with_sinks(self, sinks: Sequence[float]) -> CudaProviderWithSinks:
        placed = self._device.empty((len(sinks),), np.float32)
        self._device.upload(np.array(sinks, np.float32), placed)
        return CudaProviderWithSinks(self, placed)

    def run(self, operator: Operator, kv: KV | None = None, **arguments: Any) -> None:
        if self._kernels is None:
            raise RuntimeError("activate() the attention provider before its operators")
        operator = _with_kernel(operator)
        lanes = self._device.lanes  # in a step, both are one
        lane = lanes.dense if operator is CACHE_APPEND else lanes.attention
        if kv is None:
            self._kernels.run(lane, operator.name, None, arguments, self._reserve)
            return
        cache = self._device.module.KV(kv.k, kv.v, kv.length, kv.pages, kv.page_rows, kv.scales)
        in_step = operator is STEP_ROWS_ATTENTION or not isinstance(kv.length, int)
        reserve = self._reserve_step if in_step else self._reserve
        self._kernels.run(lane, operator.name, cache, arguments, reserve)

    def _reserve(self, nbytes: int) -> tuple[int, int]:
        if self._workspace.nbytes < nbytes:
            self._workspace = self._device.empty(
                (0,), np.uint8
            )  # free the old one before allocating the new one
            self._workspace = self._device.empty((nbytes,), np.uint8)
        return self._workspace.address, self._workspace.nbytes

    def _reserve_step(self, nbytes: int) -> tuple[int, int]:
        if self._step_workspace.nbytes < nbytes:
            self._step_workspace = self._device.empty((nbytes,), np.uint8)
        return self._step_workspace.address, self._step_workspace.nbytes


class CudaProviderWithSinks(LayerProvider):
    """`sinks` [Hq], on the device, join the softmax of the layer's rows."""

    def __init__(self, provider: NativeCudaProvider, sinks: _cuda.Array) -> None:
        super().__init__(provider)
        self._sinks = sinks

    def run(self, operator: Operator, kv: KV | None = None, **arguments: Any) -> None:
        operator = _with_kernel(operator)
        if operator.sinks:
            arguments["sinks"] = self._sinks
        self._provider.run(operator, kv, **arguments)


def _with_kernel(operator: Operator) -> Operator:
    """The operator that computes another one's result here."""
    return CACHED_ATTENTION if operator is PROMPT_ATTENTION else operator
