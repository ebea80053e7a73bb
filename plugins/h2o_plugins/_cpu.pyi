# By nanobind 3.1.0: make stubs
"""
Attention operators of ONNX domain `h2o` on the CPU.

h2o_runtime.operators has their tensors and attributes, AttentionProvider their meaning. Arrays are C-contiguous;
those without a type here are float32, or float16 with half=True. Caches can be float16 too, or int8 with
scales [rows, Hkv] of keys and of values.
"""

from typing import Annotated

import numpy
from numpy.typing import NDArray

def product_instructions() -> str:
    """
    What products with integer weights run on here: avx512vnni, avxvnni, dotprod, or scalar, which is slow.
    """

class Kernels:
    """
    One model shape's operators and the threads that run them. threads <= 0: all that the process may use.

    ValueError: an argument that the kernels refuse; MemoryError: no room for their scratch.
    """

    def __init__(
        self,
        threads: int,
        isa: str | None,
        query_heads: int,
        kv_heads: int,
        head_size: int,
        scale: float,
        half: bool,
        value_size: int = 0,
    ) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def isa(self) -> str: ...
    @property
    def scratch_bytes(self) -> int: ...
    def chunked_intra_attention(
        self,
        q: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        v: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        chunk_size: int,
        o: Annotated[NDArray, dict(order="C", device="cpu")],
        m: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        l: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        colsum: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")] | None,
    ) -> None: ...
    def memory_attention(
        self,
        q: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_mem: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        v_mem: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        o: Annotated[NDArray, dict(order="C", device="cpu")],
        m: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        l: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        colsum: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")] | None,
    ) -> None: ...
    def memory_fused_attention(
        self,
        q: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        v_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        memory: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)],
        tile: int,
        o: Annotated[NDArray, dict(order="C", device="cpu")],
        m: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        l: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        colsum: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")] | None,
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        ]
        | None = None,
    ) -> None: ...
    def memory_gather(
        self,
        k_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        v_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        memory: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)],
        k_mem: Annotated[NDArray, dict(order="C", device="cpu")],
        v_mem: Annotated[NDArray, dict(order="C", device="cpu")],
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        ]
        | None = None,
    ) -> None: ...
    def cache_append(
        self,
        k: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        v: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        first: int,
        k_cache: Annotated[NDArray, dict(order="C", device="cpu")],
        v_cache: Annotated[NDArray, dict(order="C", device="cpu")],
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        ]
        | None = None,
    ) -> None: ...
    def online_softmax_fusion(
        self,
        o_a: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        m_a: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        l_a: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        o_b: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        m_b: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        l_b: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        o: Annotated[NDArray, dict(order="C", device="cpu")],
        m: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        l: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
    ) -> None: ...
    def candidate_score(
        self,
        q_window: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        memory: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)],
        score_mem: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        score_chunk: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        ]
        | None = None,
    ) -> None: ...
    def memory_select(
        self,
        score: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        memory: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)],
        start: int,
        stop: int,
        local: int,
        sink: int,
        memory_next: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu")],
    ) -> None: ...
    def query_select(
        self,
        q: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        candidates: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)],
        past: Annotated[NDArray[numpy.int64], dict(order="C", device="cpu", writable=False)],
        tile: int,
        stride: int,
        share: int,
        reach: int,
        local: int,
        sink: int,
        memory_next: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu")],
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        ]
        | None = None,
    ) -> None: ...
    def cached_attention(
        self,
        q: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        v_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        length: int,
        o: Annotated[NDArray, dict(order="C", device="cpu")],
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        ]
        | None = None,
    ) -> None: ...
    def step_attention(
        self,
        q: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        v: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_cache: Annotated[NDArray, dict(order="C", device="cpu")],
        v_cache: Annotated[NDArray, dict(order="C", device="cpu")],
        length: int,
        o: Annotated[NDArray, dict(order="C", device="cpu")],
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        ]
        | None = None,
    ) -> None:
        """
        Attention of one row, the last, whose own key and value become the cache's last first.
        """

    def scored_attention(
        self,
        q: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        v_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        length: int,
        o: Annotated[NDArray, dict(order="C", device="cpu")],
        seen: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        ]
        | None = None,
    ) -> None:
        """
        Attention of one row, the last, and each row's probability, summed over the query heads of a key.
        """

    def landmark_update(
        self,
        k_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        v_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_mean: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        v_mean: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        start: int,
        length: int,
        block_size: int,
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        ]
        | None = None,
    ) -> None: ...
    def subquadratic_attention(
        self,
        q: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        v_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_mean: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        v_mean: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        global_rows: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)],
        length: int,
        window: int,
        block_size: int,
        strides: int,
        count_bias: int,
        o: Annotated[NDArray, dict(order="C", device="cpu")],
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        ]
        | None = None,
    ) -> None: ...
    def page_bounds(
        self,
        k_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_min: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        k_max: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu")],
        start: int,
        length: int,
        page_size: int,
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        ]
        | None = None,
    ) -> None: ...
    def page_select(
        self,
        q: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_min: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        k_max: Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        length: int,
        page_size: int,
        page_list: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu")],
    ) -> None: ...
    def page_attention(
        self,
        q: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        v_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        page_list: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)],
        length: int,
        page_size: int,
        o: Annotated[NDArray, dict(order="C", device="cpu")],
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        ]
        | None = None,
    ) -> None: ...
    def vertical_slash_select(
        self,
        q: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        length: int,
        sink: int,
        near: int,
        columns: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu")],
        distances: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu")],
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        ]
        | None = None,
    ) -> None: ...
    def vertical_slash_attention(
        self,
        q: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        k_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        v_cache: Annotated[NDArray, dict(order="C", device="cpu", writable=False)],
        columns: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)],
        distances: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)],
        length: int,
        o: Annotated[NDArray, dict(order="C", device="cpu")],
        pages: Annotated[NDArray[numpy.int32], dict(order="C", device="cpu", writable=False)] | None = None,
        page_rows: int = 0,
        scales: tuple[
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
            Annotated[NDArray[numpy.float32], dict(order="C", device="cpu", writable=False)],
        ]
        | None = None,
    ) -> None: ...
