"""The runtime on the double: dense graphs are operations of the dense lane, and the host's own uses are told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from numpy.typing import NDArray

import h2o_plugins
from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend
from h2o_runtime.devices import cuda as cuda_device
from h2o_runtime.execution.recorded import RecordedForward
from tests.order.array import Array
from tests.order.clocks import Order, of_array
from tests.order.device import order_module, whole

Tensors = Mapping[str, Array]


@contextmanager
def checked(left_out: str | None = None, recordable: bool = True) -> Iterator[Order]:
    """Within it, device "cuda" is the double. `recordable`: whether decode steps may be recorded."""
    order = Order(left_out)
    module = order_module(order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "h2o_plugins._cuda", module)
        patch.setattr(h2o_plugins, "_cuda", module, raising=False)
        _dense_graphs_go_to(order, patch)
        patch.setattr(OnnxRuntimeBackend, "recordable", recordable)
        _the_host_tells(order, patch)
        yield order


def _dense_graphs_go_to(order: Order, patch: pytest.MonkeyPatch) -> None:
    def bound(self: OnnxRuntimeBackend, graph: str, inputs: Tensors, outputs: Tensors) -> Callable[[], None]:
        def call() -> None:
            uses = [whole(array, False, name) for name, array in inputs.items()]
            uses += [whole(array, True, name) for name, array in outputs.items()]
            self.device.lanes.dense.run(graph, uses)  # type: ignore[union-attr]

        return call

    def infer(self: OnnxRuntimeBackend, graph: str, inputs: Tensors, outputs: Tensors) -> None:
        bound(self, graph, inputs, outputs)()

    patch.setattr(OnnxRuntimeBackend, "activate", lambda self, only=None: None)
    patch.setattr(OnnxRuntimeBackend, "infer", infer)
    patch.setattr(OnnxRuntimeBackend, "bound", bound)


def _the_host_tells(order: Order, patch: pytest.MonkeyPatch) -> None:
    """What passes through pinned memory: written before an upload, read after a download."""
    take, download = cuda_device._Staging.take, cuda_device.CudaDevice.download
    decode = RecordedForward.decode

    def taken(self: Any, nbytes: int) -> NDArray[Any]:
        staged = take(self, nbytes)
        if nbytes:
            order.host("the host, writing what is to be copied,", of_array(staged, True))
        return staged

    def downloaded(self: Any, source: Array) -> NDArray[Any]:
        result = download(self, source)
        if result.nbytes:
            order.host("the host, reading what was copied,", of_array(result, False))
        return result

    def decoded(self: Any, *arguments: Any) -> NDArray[Any]:
        logits: NDArray[Any] = decode(self, *arguments)
        order.host("the host, reading logits,", of_array(logits, False))
        return logits

    patch.setattr(cuda_device._Staging, "take", taken)
    patch.setattr(cuda_device.CudaDevice, "download", downloaded)
    patch.setattr(RecordedForward, "decode", decoded)
