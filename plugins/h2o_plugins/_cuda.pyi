# By nanobind 3.1.0: make stubs
"""
One NVIDIA GPU: memory, streams, graphs, and the attention operators of ONNX domain `h2o` on it.

Addresses are plain integers. Calls that take a Stream only enqueue work on it, unless they say that they wait.
Sizes are the caller's word: nothing here can know what lies at an address.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

MEMORY: str  # where the addresses point, in ONNX Runtime's words: "cuda"; "cpu" in the emulation on a CPU

class CudaError(RuntimeError):
    """
    The CUDA runtime refused or failed; the message has its words and the call.
    """

def device_count() -> int:
    """NVIDIA GPUs that this process can use; 0 without a driver."""

def device_name() -> str: ...
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

class Kernels:
    """
    One model shape's operators. `score_heads` are Hkv or Hq; an address of 0 is a null pointer.

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
    ) -> None: ...
    def chunked_intra_attention(
        self,
        stream: Stream,
        *,
        n: int,
        chunk_size: int,
        score_heads: int,
        q: int,
        k: int,
        v: int,
        o: int,
        m: int,
        l: int,
        colsum: int,
    ) -> None: ...
    def memory_attention_workspace(self, n: int, slots: int, score_heads: int) -> int: ...
    def memory_fused_attention(
        self,
        stream: Stream,
        *,
        n: int,
        slots: int,
        score_heads: int,
        q: int,
        k_cache: int,
        v_cache: int,
        capacity: int,
        memory: int,
        o: int,
        m: int,
        l: int,
        colsum: int,
        workspace: int,
        workspace_bytes: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None:
        """In place: o, m, l are the intra state and become the fused one."""

    def tiled_memory_attention(
        self,
        stream: Stream,
        *,
        n: int,
        tile: int,
        slots: int,
        score_heads: int,
        q: int,
        k_cache: int,
        v_cache: int,
        capacity: int,
        memory: int,
        o: int,
        m: int,
        l: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None:
        """
        The same of tiles of rows, with a memory each: memory [tiles, Hs, slots]. One launch.
        """

    def candidate_score_workspace(self, window: int, n: int, slots: int, score_heads: int) -> int: ...
    def candidate_score(
        self,
        stream: Stream,
        *,
        window: int,
        n: int,
        slots: int,
        score_heads: int,
        q_window: int,
        k: int,
        k_cache: int,
        capacity: int,
        memory: int,
        score_mem: int,
        score_chunk: int,
        workspace: int,
        workspace_bytes: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None: ...
    def query_select_workspace(
        self, *, n: int, tile: int, stride: int, slots: int, score_heads: int, capacity: int
    ) -> int: ...
    def query_select(
        self,
        stream: Stream,
        *,
        n: int,
        tile: int,
        stride: int,
        share: int,
        reach: int,
        slots: int,
        score_heads: int,
        local: int,
        heavy: int,
        sink: int,
        q: int,
        k_cache: int,
        capacity: int,
        candidates: int,
        past: int,
        memory_next: int,
        workspace: int,
        workspace_bytes: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None: ...
    def cached_attention_workspace(self, n: int, capacity: int) -> int: ...
    def cached_attention(
        self,
        stream: Stream,
        *,
        n: int,
        q: int,
        k_cache: int,
        v_cache: int,
        capacity: int,
        length: int,
        o: int,
        workspace: int,
        workspace_bytes: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None: ...
    def step_attention(
        self,
        stream: Stream,
        *,
        q: int,
        k: int,
        v: int,
        k_cache: int,
        v_cache: int,
        capacity: int,
        length: int,
        o: int,
        arrivals: int,
        workspace: int,
        workspace_bytes: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None:
        """
        Cache row `length` - 1 becomes k and v, and one row attends to all up to it. `arrivals` are uint32 [query heads], zeros that every call leaves as zeros.
        """

    def scored_attention_workspace(self, capacity: int) -> int: ...
    def scored_attention(
        self,
        stream: Stream,
        *,
        q: int,
        k_cache: int,
        v_cache: int,
        capacity: int,
        length: int,
        o: int,
        seen: int,
        workspace: int,
        workspace_bytes: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None:
        """
        Attention of one row, the last, and each row's probability, summed over the query heads of a key.
        """

    def cache_append(
        self,
        stream: Stream,
        *,
        k: int,
        v: int,
        k_cache: int,
        v_cache: int,
        capacity: int,
        n: int = 1,
        position: int = 0,
        first: int = 0,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None:
        """
        Cache rows from `first` on, or from `position` on, an int64 on the device, become k and v, each [n, Hkv, d], as the cache stores them.
        """

    def landmark_update(
        self,
        stream: Stream,
        *,
        most_rows: int,
        blocks: int,
        k_cache: int,
        v_cache: int,
        capacity: int,
        k_mean: int,
        v_mean: int,
        start: int,
        length: int,
        block_size: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None:
        """In place. At most `most_rows` lie between `start` and `length`."""

    def subquadratic_attention(
        self,
        stream: Stream,
        *,
        n: int,
        slots: int,
        q: int,
        k_cache: int,
        v_cache: int,
        capacity: int,
        k_mean: int,
        v_mean: int,
        global_rows: int,
        length: int,
        window: int,
        block_size: int,
        strides: int,
        count_bias: int,
        o: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None:
        """`slots` is the number of global rows."""

    def page_bounds(
        self,
        stream: Stream,
        *,
        most_rows: int,
        blocks: int,
        k_cache: int,
        capacity: int,
        k_min: int,
        k_max: int,
        start: int,
        length: int,
        page_size: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None:
        """In place. At most `most_rows` lie between `start` and `length`."""

    def page_select_workspace(self, blocks: int, score_heads: int) -> int: ...
    def page_select(
        self,
        stream: Stream,
        *,
        blocks: int,
        q: int,
        k_min: int,
        k_max: int,
        length: int,
        page_size: int,
        budget: int,
        score_heads: int,
        page_list: int,
        workspace: int,
        workspace_bytes: int,
    ) -> None: ...
    def page_attention(
        self,
        stream: Stream,
        *,
        slots: int,
        score_heads: int,
        q: int,
        k_cache: int,
        v_cache: int,
        capacity: int,
        page_list: int,
        length: int,
        page_size: int,
        o: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None:
        """`slots` is the length of a list of pages."""

    def vertical_slash_select_workspace(self, n: int, capacity: int) -> int: ...
    def vertical_slash_select(
        self,
        stream: Stream,
        *,
        n: int,
        q: int,
        k_cache: int,
        capacity: int,
        length: int,
        vertical: int,
        slash: int,
        sink: int,
        near: int,
        columns: int,
        distances: int,
        workspace: int,
        workspace_bytes: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None:
        """columns [Hq, vertical] and distances [Hq, slash]."""

    def vertical_slash_attention_workspace(self, n: int, capacity: int, slash: int) -> int: ...
    def vertical_slash_attention(
        self,
        stream: Stream,
        *,
        n: int,
        q: int,
        k_cache: int,
        v_cache: int,
        capacity: int,
        vertical: int,
        columns: int,
        slash: int,
        distances: int,
        length: int,
        o: int,
        workspace: int,
        workspace_bytes: int,
        pages: int = 0,
        page_rows: int = 0,
        k_scales: int = 0,
        v_scales: int = 0,
        item_bytes: int = 0,
    ) -> None:
        """columns [Hq, vertical] and distances [Hq, slash]."""

def score_update(
    stream: Stream, *, score_heads: int, slots: int, memory: int, values: int, replace: bool, score: int
) -> None:
    """
    score [cap, Hs] at the positions memory [Hs, slots] += or = values [Hs, slots].
    """

def memory_step(
    stream: Stream,
    *,
    score_heads: int,
    capacity: int,
    previous_slots: int,
    local: int,
    heavy: int,
    sink: int,
    start: int,
    stop: int,
    memory: int,
    values: int,
    replace: bool,
    score: int,
    memory_next: int,
    last: int = 0,
    set: int = 0,
    set_scores: int = 0,
) -> None:
    """
    The end of a chunk in one launch: score_update with `values`, unless they are a null pointer, the selection of the next memory, and copies of it and of its scores.
    """
