"""Dense graphs on ONNX Runtime's CPU provider, with inputs and outputs bound to the caller's memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from h2o_runtime.backends.base import Tensors
from h2o_runtime.bundle import Bundle
from h2o_runtime.errors import BackendError, BundleError
from h2o_runtime.manifest import GraphSpec

log = logging.getLogger(__name__)


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


class SharedEnvironment:
    """ONNX Runtime's process-wide thread pool and memory arena, which all sessions share.

    Without it every session would bring its own threads and keep its own scratch memory: one model is some
    thirty sessions. ONNX Runtime fixes the pool's size at first use, for the whole process.
    """

    _threads: int | None = None

    @classmethod
    def prepare(cls, threads: int) -> None:
        ort = import_onnxruntime()
        if cls._threads is None:
            try:
                ort.set_global_thread_pool_sizes(threads, 1)
                cls._threads = threads
            except Exception as error:  # the process had sessions of its own before
                log.warning("ONNX Runtime's thread pool exists already, its size stays as it is: %s", error)
                cls._threads = 0
            memory = ort.OrtMemoryInfo(
                "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
            )
            ort.create_and_register_allocator(memory, None)
        elif cls._threads not in (0, threads):
            log.warning("ONNX Runtime keeps %d threads: the first model of a process sets them", cls._threads)


def open_session(model: str | bytes, threads: int, optimize: bool = True) -> Any:
    """A session on the shared pool and arena. Errors are ONNX Runtime's own."""
    ort = import_onnxruntime()
    SharedEnvironment.prepare(threads)
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.enable_mem_pattern = False  # patterns are kept for every n that was ever seen
    options.log_severity_level = 3
    options.add_session_config_entry("session.use_env_allocators", "1")
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_bound(session: Any, inputs: Tensors, outputs: Tensors) -> None:
    """Run a session on memory that the caller owns."""
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for name, array in outputs.items():
        binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    session.run_with_iobinding(binding)


class OnnxRuntimeBackend:
    """One session a dense graph. Weights are mapped from the bundle's files, not read."""

    name = "onnxruntime"

    def __init__(self, bundle: Bundle, threads: int | None = None) -> None:
        self.bundle = bundle
        self.threads = threads or default_threads()
        self._sessions: dict[str, Any] = {}

    def activate(self, only: Sequence[str] | None = None) -> None:
        """Load all dense graphs, or those named in `only`."""
        for graph in self.bundle.manifest.dense_graphs():
            if only is None or graph.name in only:
                self._sessions[graph.name] = self._load(graph)

    def infer(self, graph: str, inputs: Tensors, outputs: Tensors) -> None:
        try:
            run_bound(self._sessions[graph], inputs, outputs)
        except KeyError:
            raise BackendError(f"graph {graph} is not loaded: activate the backend first") from None

    def deactivate(self) -> None:
        self._sessions.clear()

    def _load(self, graph: GraphSpec) -> Any:
        path = self.bundle.path(graph)
        import_onnxruntime()
        try:
            return open_session(str(path), self.threads)
        except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
            raise BundleError(
                f"{path}: ONNX Runtime cannot load it: {_first_line(error)}; export the checkpoint again"
            ) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
