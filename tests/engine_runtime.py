"""TensorRT's runtime half as a double: engines execute on ONNX Runtime, at the time their stream gets to it.

It holds callers to TensorRT's rules: shapes within the profile, every address given and a multiple of 256, scratch
memory large enough. Scratch memory is overwritten by every execution, as TensorRT does.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from h2o_plugins import load_cuda_kernels
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.engines import EngineManifest
from h2o_runtime.ort.session import BoundSession, open_session
from tests.engines import Double

SCRATCH_BYTES = 1000  # not a multiple of the alignment, as TensorRT's sizes may be
Work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class HostFunctions:
    """Calls of Python as work of the emulated module's streams."""

    def __init__(self, cuda: ModuleType) -> None:
        assert cuda.__file__ is not None
        self._runtime = ctypes.CDLL(cuda.__file__)
        self._runtime.cudaLaunchHostFunc.argtypes = [ctypes.c_void_p, Work, ctypes.c_void_p]
        self._kept: list[Any] = []  # callbacks, which a recorded graph may call at any time
        self.failures: list[BaseException] = []

    def enqueue(self, stream: int, work: Callable[[], None]) -> bool:
        def run(nothing: object) -> None:
            # The emulated GPU is in the middle of a call: garbage that frees its memory would wait for ever.
            gc.disable()
            try:
                work()
            except BaseException as error:
                self.failures.append(error)
            finally:
                gc.enable()

        callback = Work(run)
        self._kept.append(callback)
        return int(self._runtime.cudaLaunchHostFunc(stream, callback, None)) == 0


class RuntimeDouble(Double):
    """`cuda` is the emulated module, whose streams the engines run on."""

    class ExecutionContextAllocationStrategy(Enum):
        STATIC = 0
        ON_PROFILE_CHANGE = 1
        USER_MANAGED = 2

    def __init__(self, cuda: ModuleType, bundle: Bundle) -> None:
        super().__init__()
        functions = HostFunctions(cuda)
        self.enqueue, self.failures = functions.enqueue, functions.failures
        self.bundle = bundle
        self.executions: dict[str, int] = {}
        self.refuse_plan = False
        self.refusals = 0  # executions that will fail from now on
        self.scratch: set[tuple[int, int]] = set()
        self.Runtime = lambda logger: Runtime(self, logger)


class Runtime:
    def __init__(self, double: RuntimeDouble, logger: Any) -> None:
        self.double, self.logger = double, logger

    def deserialize_cuda_engine(self, plan: bytes) -> Engine | None:
        if self.double.refuse_plan:
            self.logger.log(self.double.ILogger.Severity.ERROR, "the plan is from the future\nand more")
            return None
        return Engine(self.double, plan.decode())


class Engine:
    def __init__(self, double: RuntimeDouble, name: str) -> None:
        manifest = EngineManifest.read(double.bundle.folder / "engines" / "tensorrt")
        self.double = double
        self.spec = next(engine for engine in manifest.engines if engine.name == name)
        self.graph = double.bundle.graph(name)
        self.session = BoundSession(open_session(str(double.bundle.path(self.graph)), threads=1))
        self.device_memory_size_v2 = SCRATCH_BYTES

    def create_execution_context(self, strategy: Enum) -> Context:
        assert strategy.name == "USER_MANAGED"
        return Context(self)


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.double = engine.double
        self.profile: Any = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.scratch: tuple[int, int] | None = None

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.profile = self.engine.spec.profiles[index]
        return True

    def set_device_memory(self, address: int, size: int) -> None:
        assert address % 256 == 0
        assert size >= self.engine.device_memory_size_v2
        self.scratch = (address, size)
        self.double.scratch.add(self.scratch)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        limits = self.profile.shapes[name]
        self.shapes[name] = tuple(shape)
        fits = zip(limits.min, shape, limits.max, strict=True)
        return all(least <= size <= most for least, size, most in fits)

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert name in {tensor.name for tensor in (*self.engine.graph.inputs, *self.engine.graph.outputs)}
        assert address % 256 == 0, f"TensorRT: {name} at {address:#x} is not aligned"
        self.addresses[name] = address
        return address != 0

    def execute_async_v3(self, stream: int) -> bool:
        if self.double.refusals:
            self.double.refusals -= 1
            return False
        graph = self.engine.graph
        assert self.scratch is not None
        assert {tensor.name for tensor in graph.inputs} == set(self.shapes)
        assert {tensor.name for tensor in (*graph.inputs, *graph.outputs)} == set(self.addresses)
        free = {
            symbol: size
            for tensor in graph.inputs
            for symbol, size in zip(tensor.shape, self.shapes[tensor.name], strict=True)
            if isinstance(symbol, str)
        }

        module = load_cuda_kernels()

        def arrays(tensors: Any) -> dict[str, Any]:
            return {
                tensor.name: module.Array(
                    self.addresses[tensor.name],
                    tuple(free[size] if isinstance(size, str) else size for size in tensor.shape),
                    np.dtype(tensor.dtype),
                    None,
                )
                for tensor in tensors
            }

        inputs, outputs, scratch = arrays(graph.inputs), arrays(graph.outputs), self.scratch

        def work() -> None:
            name = self.engine.spec.name
            self.double.executions[name] = self.double.executions.get(name, 0) + 1
            ctypes.memset(scratch[0], 0xAB, scratch[1])
            self.engine.session.run(inputs, outputs)

        return self.double.enqueue(stream, work)


def plugin_library(folder: Path) -> Path:
    library = folder / "libh2o_trt_plugins.so"
    library.write_bytes(b"plugins")
    return library
