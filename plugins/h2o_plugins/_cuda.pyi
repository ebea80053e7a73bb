# By nanobind 3.1.0: make stubs
"""
One NVIDIA GPU: memory, streams, graphs, and the attention operators of ONNX domain `h2o` on it.

Addresses are plain integers. Calls that take a Stream only enqueue work on it, unless they say that they wait.
Sizes are the caller's word: nothing here can know what lies at an address.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray

MEMORY: str  # where the addresses point, in ONNX Runtime's words: "cuda"; "cpu" in the emulation on a CPU

class CudaError(RuntimeError):
    """
    The CUDA runtime refused or failed; the message has its words and the call.
    """

class Array:
    """
    C-contiguous, of at most four dimensions. Views keep the memory alive that they refer to: `owner` does.
    """

    def __init__(
        self, address: int, shape: tuple[int, ...], dtype: numpy.dtype[Any], owner: object | None
    ) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> numpy.dtype[Any]: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: int | slice) -> Array:
        """Some rows, or one of them without its dimension."""

    def reshape(self, *shape: int) -> Array: ...
    def __repr__(self) -> str: ...

def device_count() -> int:
    """NVIDIA GPUs that this process can use; 0 without a driver."""

def device_name() -> str: ...
def shares_host_memory() -> bool:
    """Whether the GPU's memory is the host's."""

def memory_info() -> tuple[int, int]:
    """Bytes of the GPU's memory that are free, and all of them."""

class Memory:
    """
    Bytes on the GPU, given back with the object. Raises MemoryError when there are not as many.
    """

    def __init__(self, nbytes: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class PinnedMemory:
    """Bytes on the host that the GPU copies from and to without a detour."""

    def __init__(self, nbytes: int) -> None: ...
    def array(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """All of it; the array keeps it alive."""

class Event:
    def __init__(self, timing: bool = False) -> None: ...
    def record(self, stream: Stream) -> None: ...
    def synchronize(self) -> None:
        """
        Wait until what was before it is done, without holding the interpreter lock.
        """

    def milliseconds_since(self, start: Event) -> float:
        """Both with timing, and both done."""

class Graph:
    def launch(self, stream: Stream) -> None: ...

class Stream:
    """
    Does not wait for the legacy default stream. The work of an urgent one goes before that of others.
    """

    def __init__(self, urgent: bool = False) -> None: ...
    @property
    def handle(self) -> int:
        """A cudaStream_t."""

    def synchronize(self) -> None:
        """Wait until all of it is done, without holding the interpreter lock."""

    def wait(self, event: Event) -> None:
        """
        What is enqueued from now on comes after what the event was last recorded for, if anything.
        """

    def upload(
        self, source: Annotated[NDArray, dict(order="C", device="cpu", writable=False)], target: int
    ) -> None:
        """
        C-contiguous host array to device. From pinned memory it is read later: leave that alone until then.
        """

    def download(self, source: int, target: Annotated[NDArray, dict(order="C", device="cpu")]) -> None:
        """
        Device to C-contiguous host array, which holds it after a `synchronize`.
        """

    def copy(self, source: int, target: int, nbytes: int) -> None: ...
    def clear(self, target: int, nbytes: int) -> None:
        """All bits 0."""

    def write_integers(self, target: int, values: Sequence[int]) -> None:
        """
        At most 8 int64, which travel as arguments of a kernel: no host memory is read later.
        """

    def begin_capture(self) -> None:
        """
        What is enqueued from now on is recorded instead of run; in "thread local" mode.
        """

    def end_capture(self) -> Graph:
        """
        CudaError if something that may not be captured was tried; recording has ended all the same.
        """

class KV:
    """
    One layer's cache, as h2o_runtime's KV has it. ValueError: arrays that do not agree.
    """

    def __init__(
        self,
        k: object,
        v: object,
        length: object,
        pages: object | None = None,
        page_rows: int = 0,
        scales: object | None = None,
    ) -> None: ...

class Kernels:
    """
    One model shape's operators. `counters` [16, query_heads] are uint32 zeros and `integers` [8] int64 on the device, for one stream.

    ValueError: an argument that the kernels refuse; CudaError: a launch that failed.
    """

    def __init__(
        self,
        *,
        query_heads: int,
        kv_heads: int,
        head_size: int,
        scale: float,
        half: bool,
        value_size: int = 0,
        window: int = 0,
        softcap: float = 0.0,
        counters: int,
        integers: int,
    ) -> None: ...
    def run(self, stream: Stream, operator: str, kv: KV | None, arguments: dict, reserve: Callable) -> None:
        """
        Enqueues an operator of the table by its name. The arguments are its tensors, without those of kv, and its attributes, by their names. reserve(bytes) gives a workspace: its address and its size.
        """
