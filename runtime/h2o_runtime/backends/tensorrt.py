"""Dense graphs as TensorRT engines, on the device's dense lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from h2o_runtime.backend import StepTensors, Tensors
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.devices.tensor import ALIGNMENT
from h2o_runtime.engines import EngineSet, EngineSpec, Machine, open_engines
from h2o_runtime.engines.machine import import_tensorrt, make_logger
from h2o_runtime.errors import BackendError, ConfigError
from h2o_runtime.names import DensePrecision

if TYPE_CHECKING:
    from h2o_plugins._cuda import Array


class TensorRTBackend:
    """One engine per dense graph, with a context for prompts and one for each number of rows of a step: a recording
    needs its context as it was. An engine's weights are on the device once for all.

    Engines run one after the other, so all contexts share one scratch buffer of the largest size that any of
    them needs. Inputs and outputs, including caches, are bound in place. TensorRT needs addresses that are
    multiples of 256 bytes; other arrays are copied through a buffer.
    """

    recordable = True
    native_products = False
    dense_precision: DensePrecision | None = None

    def __init__(self, bundle: Bundle, device: CudaDevice, target: str, context: int) -> None:
        self.name = target
        self.bundle = bundle
        self.model = bundle.manifest.model
        self.most_rows = self.step_rows = 1
        self._device = device
        self._context = context
        self._engines: dict[str, _Engine] = {}
        self._scratch: Array | None = None
        self._buffers = AlignedBuffers(device, self.most_rows)
        self._loader: _Loader | None = None

    def activate(self, only: Sequence[str] | None = None) -> None:
        """Load the engines of all dense graphs, or those named in `only`. Raises what `open_engines`
        raises.
        """
        if self._loader is None:  # every plan file is read once, for its hash
            machine = Machine.here(self.name)
            engines = open_engines(self.bundle, machine, self._context)
            self.most_rows = engines.manifest.batch_size
            self._loader = _Loader(import_tensorrt(machine.target), engines)
        for graph in self.bundle.manifest.weighty_graphs():
            if only is None or graph.name in only:
                self._engines[graph.name] = self._loader.load(graph.name, self._device.lanes.dense.handle)
        self.step_rows = min((engine.step_rows for engine in self._engines.values()), default=1)
        need = max((engine.scratch_bytes for engine in self._engines.values()), default=0)
        self._scratch = self._device.empty((need,), np.uint8)
        self._buffers = AlignedBuffers(self._device, self.most_rows)
        for engine in self._engines.values():
            engine.use(self._scratch)

    def infer(self, graph: str, inputs: Tensors, outputs: Tensors) -> None:
        self._run(self._loaded(graph).prompts, inputs, outputs)

    def bound(self, graph: str, inputs: Tensors, outputs: Tensors) -> Callable[[], None]:
        rows = len(next(iter(outputs.values())))
        return partial(self._run, self._loaded(graph).steps(rows), inputs, outputs)

    def load_hidden(self) -> None:
        raise ConfigError(
            "embeddings need hidden states, but engines return only logits: use the backend onnxruntime",
            field="backend",
        )

    def load_draft(self) -> None:
        raise AssertionError("asked only of a backend with native products")

    def _loaded(self, graph: str) -> _Engine:
        try:
            return self._engines[graph]
        except KeyError:
            raise BackendError(f"graph {graph} is not loaded: activate the backend first") from None

    def _run(self, context: _Context, inputs: Tensors, outputs: Tensors) -> None:
        lane = self._device.lanes.dense
        placed = {
            name: self._buffers.place(name, array) for name, array in (*inputs.items(), *outputs.items())
        }
        for name, array in inputs.items():
            if placed[name] is not array:
                lane.copy(array.address, placed[name].address, array.nbytes)
        context.run(
            {name: placed[name] for name in inputs}, {name: placed[name] for name in outputs}, lane.handle
        )
        for name, array in outputs.items():
            if placed[name] is not array:
                lane.copy(placed[name].address, array.address, array.nbytes)

    def whole_step(self, tensors: StepTensors) -> None:
        """A recorded step is already one call."""

    def deactivate(self) -> None:
        self._device.synchronize()  # contexts must not be freed while they run
        self._engines.clear()
        self._scratch = None


class AlignedBuffers:
    """One buffer per tensor name, allocated when the name first has an address that TensorRT refuses."""

    def __init__(self, device: CudaDevice, most_rows: int) -> None:
        self._device = device
        self._most_rows = most_rows
        self._buffers: dict[str, Array] = {}

    def place(self, name: str, array: Array) -> Array:
        """The array itself if it is aligned, otherwise as many rows of its buffer."""
        if array.address % ALIGNMENT == 0:
            return array
        if name not in self._buffers:
            self._buffers[name] = self._device.empty((self._most_rows, *array.shape[1:]), array.dtype)
        return self._buffers[name][: len(array)]


class _Loader:
    """Makes engines from plan files. The runtime that made them must outlive them."""

    def __init__(self, trt: Any, engines: EngineSet) -> None:
        self._trt = trt
        self._engines = engines
        self._logger = make_logger(trt)
        self._runtime = trt.Runtime(self._logger)

    def load(self, name: str, stream: int) -> _Engine:
        spec = next(engine for engine in self._engines.manifest.engines if engine.name == name)
        path = self._engines.plan(name)
        self._logger.errors.clear()
        engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            raise BackendError(f"{path}: TensorRT cannot load it: {self._logger.reason}")

        def fail(call: str) -> BackendError:
            return BackendError(f"{path}: TensorRT failed in {call}: {self._logger.reason}")

        return _Engine(self._trt, self._runtime, engine, spec, stream, fail)


class _Engine:
    """One engine and its contexts. Prompts and steps have a profile each, or share the engine's only one.
    TensorRT allows several contexts of one profile since version 10.

    prompts    the context for any number of rows
    step_rows  the most rows of a step
    """

    def __init__(
        self,
        trt: Any,
        runtime: Any,
        engine: Any,
        spec: EngineSpec,
        stream: int,
        fail: Callable[[str], BackendError],
    ) -> None:
        self._trt, self._runtime, self._engine, self._stream, self._fail = trt, runtime, engine, stream, fail
        self.scratch_bytes = int(engine.device_memory_size_v2)
        self._profiles: list[str] = [profile.name for profile in spec.profiles]
        shapes = spec.profiles[self._index("decode")].shapes.values()
        self.step_rows = min(shape.max[0] for shape in shapes)
        self.prompts = self._context("prefill")
        self._steps = {1: self._context("decode")}
        self._scratch: Array | None = None

    def steps(self, rows: int) -> _Context:
        """The context for steps of so many rows, which serves no others."""
        if rows not in self._steps:
            assert self._scratch is not None
            self._steps[rows] = self._context("decode")
            self._steps[rows].use(self._scratch)
        return self._steps[rows]

    def use(self, scratch: Array) -> None:
        self._scratch = scratch
        for context in (self.prompts, *self._steps.values()):
            context.use(scratch)

    def _index(self, profile: str) -> int:
        return self._profiles.index(profile) if profile in self._profiles else 0  # one profile serves both

    def _context(self, profile: str) -> _Context:
        context = _make_context(self._trt, self._engine, profile)
        if context is None:
            raise self._fail("create_execution_context")
        try:
            context.set_optimization_profile_async(self._index(profile), self._stream)
        except RuntimeError:
            raise self._fail("set_optimization_profile_async") from None
        return _Context(context, self._fail)


def _make_context(trt: Any, engine: Any, profile: str) -> Any:
    """A context on memory of ours; None if TensorRT fails.

    TensorRT for RTX compiles kernels for the shapes it meets, and runs general kernels until they are ready.
    A decode step waits for its compiled kernels, because a recording keeps the kernels it started with.
    Prompts do not wait, because their lengths vary.
    """
    strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
    if not hasattr(trt, "DynamicShapesKernelSpecializationStrategy"):
        return engine.create_execution_context(strategy)
    config = engine.create_runtime_config()
    config.set_execution_context_allocation_strategy(strategy)
    specialization = trt.DynamicShapesKernelSpecializationStrategy
    config.dynamic_shapes_kernel_specialization_strategy = (
        specialization.EAGER if profile == "decode" else specialization.NONE
    )
    return engine.create_execution_context(config)


class _Context:
    """Arrays at the same address as in the last run stay bound."""

    def __init__(self, context: Any, fail: Callable[[str], BackendError]) -> None:
        self._context = context
        self._fail = fail
        self._bound: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def use(self, scratch: Array) -> None:
        self._context.set_device_memory(scratch.address, scratch.nbytes)

    def run(self, inputs: Tensors, outputs: Tensors, stream: int) -> None:
        for name, array in inputs.items():
            if self._shapes.get(name) != array.shape:
                if not self._context.set_input_shape(name, array.shape):
                    raise self._fail(f"set_input_shape of {name} to {array.shape}")
                self._shapes[name] = array.shape
            self._bind(name, array)
        for name, array in outputs.items():
            self._bind(name, array)
        if not self._context.execute_async_v3(stream):
            raise self._fail("execute_async_v3")

    def _bind(self, name: str, array: Array) -> None:
        if self._bound.get(name) != array.address:
            if not self._context.set_tensor_address(name, array.address):
                raise self._fail(f"set_tensor_address of {name}")
            self._bound[name] = array.address
