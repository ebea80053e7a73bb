"""Attention operators of ONNX domain `h2o` on the CPU; see runtime's AttentionProvider for their meaning."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_Tensor = NDArray[Any]  # float32, or float16 with half=True
_Float32 = NDArray[np.float32]
_Int32 = NDArray[np.int32]

class Kernels:
    """One model shape's operators and the threads that run them. threads <= 0: all that the process may use."""

    def __init__(
        self,
        threads: int,
        isa: str | None,
        query_heads: int,
        kv_heads: int,
        head_size: int,
        scale: float,
        half: bool,
    ) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def isa(self) -> str: ...
    @property
    def scratch_bytes(self) -> int: ...
    def chunked_intra_attention(
        self,
        q: _Tensor,
        k: _Tensor,
        v: _Tensor,
        chunk_size: int,
        o: _Tensor,
        m: _Float32,
        l: _Float32,
        colsum: _Float32 | None,
    ) -> None: ...
    def memory_attention(
        self,
        q: _Tensor,
        k_mem: _Tensor,
        v_mem: _Tensor,
        o: _Tensor,
        m: _Float32,
        l: _Float32,
        colsum: _Float32 | None,
    ) -> None: ...
    def memory_fused_attention(
        self,
        q: _Tensor,
        k_cache: _Tensor,
        v_cache: _Tensor,
        memory: _Int32,
        o: _Tensor,
        m: _Float32,
        l: _Float32,
        colsum: _Float32 | None,
    ) -> None: ...
    def memory_gather(
        self, k_cache: _Tensor, v_cache: _Tensor, memory: _Int32, k_mem: _Tensor, v_mem: _Tensor
    ) -> None: ...
    def online_softmax_fusion(
        self,
        o_a: _Tensor,
        m_a: _Float32,
        l_a: _Float32,
        o_b: _Tensor,
        m_b: _Float32,
        l_b: _Float32,
        o: _Tensor,
        m: _Float32,
        l: _Float32,
    ) -> None: ...
    def candidate_score(
        self,
        q_window: _Tensor,
        k: _Tensor,
        k_cache: _Tensor,
        memory: _Int32,
        score_memory: _Float32,
        score_chunk: _Float32,
    ) -> None: ...
    def memory_select(
        self,
        score: _Float32,
        memory: _Int32,
        start: int,
        stop: int,
        local: int,
        sink: int,
        out: _Int32,
    ) -> None: ...
    def cached_attention(
        self, q: _Tensor, k_cache: _Tensor, v_cache: _Tensor, length: int, o: _Tensor
    ) -> None: ...
