"""ONNX Runtime sessions on one arena, with their own threads, on the caller's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from h2o_runtime.devices import Tensor
from h2o_runtime.devices.tensor import address_of
from h2o_runtime.ort.cuda import check_provider, cuda_providers, import_onnxruntime, version_of

# How long a session's threads spin for more work before they sleep. Operators of one graph follow each other
# within that time. A longer time would take cores from the attention kernels' threads and from the next
# graph's.
SPIN_MICROSECONDS = 20
WITHOUT_WAITING = "disable_synchronize_execution_providers"  # of a run


@cache
def share_arena() -> None:
    """Register ONNX Runtime's memory arena, which all sessions of the process share.

    Without it every session keeps its own scratch memory: a model has about thirty sessions, one of which
    runs at a time. The arena allocates what is needed, not the next power of two.
    """
    ort = import_onnxruntime()
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"arena_extend_strategy": 1}))


def open_session(
    model: str | bytes,
    threads: int,
    optimize: bool = True,
    device: Any = None,
    beside: Path | None = None,
    operators: Path | None = None,
    weights: Mapping[str, NDArray[Any]] | None = None,
) -> Any:
    """A session with threads of its own on the shared arena; on a GPU where `device` is a CudaDevice.

    beside     of a model that is given as bytes: the folder that its weights' files are named from
    operators  a library with operators that it uses beside ONNX Runtime's own
    weights    initializers that the model only names. The session reads them where they are: they are kept for it

    Errors are ONNX Runtime's own, but for a BackendError where it is not installed or cannot use the device.

    ONNX Runtime's one pool for all sessions would need fewer threads, but Python cannot tell it how long to
    spin: some 16 ms, through every attention step between two graphs.
    """
    ort = import_onnxruntime()
    share_arena()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # otherwise it keeps memory patterns for every n it has seen
    options.log_severity_level = 3
    options.add_session_config_entry("session.use_env_allocators", "1")
    if version_of(ort) >= (1, 26):
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_MICROSECONDS))
    else:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # By default ONNX Runtime changes the arithmetic of integer weights; `dense_form` decides that here.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if beside is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(beside))
    if operators is not None:
        options.register_custom_ops_library(str(operators))
    shared = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in (weights or {}).items()}
    for name, value in shared.items():
        options.add_initializer(name, value)
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    on_gpu = device is not None and device.memory == "cuda"
    if on_gpu:  # MatMulNBits would expect rearranged weights, which IntegerProduct does not read
        options.add_session_config_entry("ep.cuda.fpa_intb_gemm", "0")
    providers = cuda_providers(ort, device.lanes.dense.handle) if on_gpu else ["CPUExecutionProvider"]
    session = ort.InferenceSession(model, options, providers=providers, enable_fallback=0)
    # Otherwise it keeps the model bytes, including weights, for a fallback to other providers.
    session._model_bytes = None
    session._h2o_weights = shared
    if on_gpu:
        check_provider(session)
    return session


def run_bound(session: Any, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    """Run a session on the caller's memory."""
    BoundSession(session).run(inputs, outputs)


class BoundSession:
    """A session with inputs and outputs bound to the caller's memory.

    Arrays at the same address as in the last run stay bound: in decode that is all but the new cache row.

    memory    in ONNX Runtime's terms
    stages    whether its kernels may copy from host memory (`dense_graphs.cuda_provider`), on a GPU

    On a GPU a run only enqueues its work, but one that `stages` waits for its end. ONNX Runtime's CUDA provider
    frees the host buffers of such copies only in runs that wait. Otherwise they grow with every run until the
    session is destroyed, and then a callback of the stream frees them, and with them the session's last pinned
    memory. CUDA forbids that in a callback: the process aborts.
    """

    def __init__(self, session: Any, memory: str = "cpu", stages: bool = False) -> None:
        self._session = session
        self._memory = memory
        self._stages = stages
        self._options = None  # on the CPU: parsing them takes ONNX Runtime longer than running a small graph
        if memory != "cpu":
            self._options = import_onnxruntime().RunOptions()
            self._options.add_run_config_entry(WITHOUT_WAITING, "0" if stages else "1")
        self._binding = session.io_binding()
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._bound_arrays: Any = None  # arrays that must live as long as they are bound

    def run(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        self.bind(inputs, outputs)
        self._session.run_with_iobinding(self._binding, self._options)

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Bind inputs and outputs that have moved."""
        for name, array in inputs.items():
            self._bind(self._binding.bind_input, name, array)
        for name, array in outputs.items():
            self._bind(self._binding.bind_output, name, array)

    def bound(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Callable[[], None]:
        """A run with fixed arrays, independent of all others: nothing is looked up or bound in it."""
        fixed = BoundSession(self._session, self._memory, self._stages)
        fixed.bind(inputs, outputs)
        fixed._bound_arrays = (inputs, outputs)
        return fixed.run_again

    def run_again(self) -> None:
        """Run on the bound arrays."""
        self._session.run_with_iobinding(self._binding, self._options)

    def _bind(self, bind: Any, name: str, array: Tensor) -> None:
        place = (address_of(array), array.shape)
        if self._bound.get(name) != place:
            bind(name, self._memory, 0, array.dtype.type, array.shape, place[0])
            self._bound[name] = place
