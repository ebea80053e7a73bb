"""Dense graphs on ONNX Runtime, on the CPU or a GPU, with inputs and outputs bound to the caller's memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from h2o_runtime.backends.base import Tensors
from h2o_runtime.backends.onnxruntime_cuda import check_provider, cuda_providers
from h2o_runtime.bundle import Bundle
from h2o_runtime.devices import Device, HostDevice, Tensor
from h2o_runtime.devices.cuda_array import address_of
from h2o_runtime.errors import BackendError, BundleError
from h2o_runtime.manifest import GraphSpec


def import_onnxruntime() -> Any:
    """The module, or a BackendError that says which of the two packages to install."""
    try:
        import onnxruntime
    except ImportError:
        raise BackendError(
            "ONNX Runtime is not installed: pip install 'h2o-edge[cpu]', or 'h2o-edge[gpu]' on a machine with "
            "an NVIDIA GPU (one of the two, never both)"
        ) from None
    return onnxruntime


def default_threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# How long a session's threads look for more work before they sleep. Operators of one graph follow each other
# within that time. Longer would take cores from the attention kernels' threads, and from the next graph's.
SPIN_MICROSECONDS = 20


class SharedArena:
    """ONNX Runtime's memory arena, which all sessions of the process share.

    Without it every session would keep its own scratch memory: one model is some thirty sessions, of which
    one runs at a time. The arena asks for as much as is needed, not for the next power of two.
    """

    _registered = False

    @classmethod
    def prepare(cls) -> None:
        if cls._registered:
            return
        ort = import_onnxruntime()
        memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
        ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"arena_extend_strategy": 1}))
        cls._registered = True


def open_session(model: str | bytes, threads: int, optimize: bool = True, device: Any = None) -> Any:
    """A session with threads of its own on the shared arena; on a GPU where `device` is a CudaDevice.

    Errors are ONNX Runtime's own, but for a BackendError where it is not installed or cannot use the device.

    ONNX Runtime's one pool for all sessions would need fewer threads, but Python cannot tell it how long to
    spin: some 16 ms, through every attention step between two graphs.
    """
    ort = import_onnxruntime()
    SharedArena.prepare()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # patterns are kept for every n that was ever seen
    options.log_severity_level = 3
    options.add_session_config_entry("session.use_env_allocators", "1")
    if _version(ort) >= (1, 26):
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_MICROSECONDS))
    else:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    on_gpu = device is not None and device.memory == "cuda"
    providers = cuda_providers(ort, device.lanes.dense.handle) if on_gpu else ["CPUExecutionProvider"]
    session = ort.InferenceSession(model, options, providers=providers, enable_fallback=0)
    if on_gpu:
        check_provider(session)
    return session


def _version(ort: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in ort.__version__.split(".")[:2])


def run_bound(session: Any, inputs: Tensors, outputs: Tensors) -> None:
    """Run a session on memory that the caller owns."""
    BoundSession(session).run(inputs, outputs)


class BoundSession:
    """A session with its inputs and outputs bound to memory that the caller owns.

    What lies where it lay in the last run stays bound: in decode that is all but the new cache row. `memory`
    says where it lies, in ONNX Runtime's words. On a GPU a run only enqueues its work.
    """

    def __init__(self, session: Any, memory: str = "cpu") -> None:
        self._session = session
        self._memory = memory
        self._options = None  # on the CPU: looking into them takes ONNX Runtime longer than a small graph
        if memory != "cpu":
            self._options = import_onnxruntime().RunOptions()
            self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._binding = session.io_binding()
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}

    def run(self, inputs: Tensors, outputs: Tensors) -> None:
        for name, array in inputs.items():
            self._bind(self._binding.bind_input, name, array)
        for name, array in outputs.items():
            self._bind(self._binding.bind_output, name, array)
        self._session.run_with_iobinding(self._binding, self._options)

    def _bind(self, bind: Any, name: str, array: Tensor) -> None:
        place = (address_of(array), array.shape)
        if self._bound.get(name) != place:
            bind(name, self._memory, 0, array.dtype.type, array.shape, place[0])
            self._bound[name] = place


class OnnxRuntimeBackend:
    """One session a dense graph. On the CPU weights are mapped from the bundle's files, not read."""

    name = "onnxruntime"
    most_rows = sys.maxsize
    recordable = False

    def __init__(self, bundle: Bundle, threads: int | None = None, device: Device | None = None) -> None:
        self.bundle = bundle
        self.threads = threads or default_threads()
        self.device = device or HostDevice()
        self._sessions: dict[str, BoundSession] = {}

    def activate(self, only: Sequence[str] | None = None) -> None:
        """Load all dense graphs, or those named in `only`."""
        for graph in self.bundle.manifest.dense_graphs():
            if only is None or graph.name in only:
                self._sessions[graph.name] = self._load(graph)

    def infer(self, graph: str, inputs: Tensors, outputs: Tensors, step: bool = False) -> None:
        try:
            session = self._sessions[graph]
        except KeyError:
            raise BackendError(f"graph {graph} is not loaded: activate the backend first") from None
        try:
            session.run(inputs, outputs)
        except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
            raise BackendError(f"ONNX Runtime failed in {graph}: {_first_line(error)}") from error

    def deactivate(self) -> None:
        self._sessions.clear()

    def _load(self, graph: GraphSpec) -> BoundSession:
        path = self.bundle.path(graph)
        try:
            threads = self.threads if self.device.memory == "cpu" else 1  # those of a GPU's session are idle
            session = open_session(str(path), threads, device=self.device)
            return BoundSession(session, self.device.memory)
        except BackendError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
            raise BundleError(
                f"{path}: ONNX Runtime cannot load it: {_first_line(error)}; export the checkpoint again"
            ) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
