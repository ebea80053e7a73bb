"""The attention operators on the CPU kernels of h2o_plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h2o_plugins import load_cpu_kernels
from h2o_runtime.attention.base import AttentionShape, Float32, Int32, PartialSoftmax
from h2o_runtime.attention.host_rows import HostRows
from h2o_runtime.devices import Tensor
from h2o_runtime.kv import KV

if TYPE_CHECKING:
    from h2o_plugins._cpu import Kernels

MOST_SCORED = 16  # query heads that share a key, in scored_attention
KEY_UNIT, VALUE_UNIT = 8, 4  # which sizes of keys and of values are multiples of


class NativeCpuProvider(HostRows):
    """Raises h2o_plugins.NativeKernelsMissing on construction where the kernels are not built.

    `threads` None takes all cores that the process may use. `isa` names an instruction set ("scalar",
    "avx2", "avx512", "neon") instead of the best that the machine has.
    """

    name = "native"

    def __init__(self, threads: int | None = None, isa: str | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, but is {threads}")
        self._module = load_cpu_kernels()
        self._threads = threads
        self._isa = isa
        self.in_graphs = isa is None  # they take the best instruction set
        self._kernels: Kernels | None = None

    @staticmethod
    def takes(shape: AttentionShape) -> bool:
        return shape.head_size % KEY_UNIT == 0 and shape.value_size % VALUE_UNIT == 0

    def activate(self, shape: AttentionShape) -> None:
        self._group = shape.query_heads // shape.kv_heads
        self._kernels = self._module.Kernels(
            threads=self._threads or 0,
            isa=self._isa,
            query_heads=shape.query_heads,
            kv_heads=shape.kv_heads,
            head_size=shape.head_size,
            scale=shape.scale,
            half=shape.half,
            value_size=shape.value_size,
        )

    def deactivate(self) -> None:
        self._kernels = None

    def chunked_intra_attention(
        self, q: Tensor, k: Tensor, v: Tensor, chunk_size: int, state: PartialSoftmax, colsum: Float32 | None
    ) -> None:
        self._active.chunked_intra_attention(q, k, v, chunk_size, state.o, state.m, state.l, colsum)

    def memory_fused_attention(
        self,
        q: Tensor,
        kv: KV,
        memory: Int32,
        state: PartialSoftmax,
        colsum: Float32 | None,
    ) -> None:
        self._attend_to(q, kv, memory[None], max(len(q), 1), state, colsum)

    def tiled_memory_attention(
        self, q: Tensor, kv: KV, memory: Int32, tile: int, state: PartialSoftmax
    ) -> None:
        self._attend_to(q, kv, memory, tile, state, None)

    def _attend_to(
        self, q: Tensor, kv: KV, memory: Int32, tile: int, state: PartialSoftmax, colsum: Float32 | None
    ) -> None:
        self._active.memory_fused_attention(
            q, kv.k, kv.v, memory, tile, state.o, state.m, state.l, colsum, kv.pages, kv.page_rows, kv.scales
        )

    def candidate_score(
        self,
        q_window: Tensor,
        k: Tensor,
        kv: KV,
        memory: Int32,
        score_memory: Float32,
        score_chunk: Float32,
    ) -> None:
        self._active.candidate_score(
            q_window, k, kv.k, memory, score_memory, score_chunk, kv.pages, kv.page_rows, kv.scales
        )

    def memory_select(
        self, score: Float32, memory: Int32, start: int, stop: int, local: int, sink: int, out: Int32
    ) -> None:
        self._active.memory_select(score, memory, start, stop, local, sink, out)

    def query_select(
        self,
        q: Tensor,
        kv: KV,
        candidates: Int32,
        past: Tensor,
        tile: int,
        stride: int,
        share: int,
        reach: int,
        local: int,
        sink: int,
        out: Int32,
    ) -> None:
        self._active.query_select(
            q,
            kv.k,
            candidates,
            past,
            tile,
            stride,
            share,
            reach,
            local,
            sink,
            out,
            kv.pages,
            kv.page_rows,
            kv.scales,
        )

    def cached_attention(self, q: Tensor, kv: KV, o: Tensor) -> None:
        self._active.cached_attention(q, kv.k, kv.v, kv.length, o, kv.pages, kv.page_rows, kv.scales)

    def step_attention(self, q: Tensor, k: Tensor, v: Tensor | None, kv: KV, o: Tensor) -> None:
        values = k if v is None else v
        self._active.step_attention(q, k, values, kv.k, kv.v, kv.length, o, kv.pages, kv.page_rows, kv.scales)

    def scored_attention(self, q: Tensor, kv: KV, o: Tensor) -> None:
        if self._group > MOST_SCORED:
            super().scored_attention(q, kv, o)
            return
        assert kv.seen is not None
        self._active.scored_attention(q, kv.k, kv.v, kv.length, o, kv.seen, kv.pages, kv.page_rows, kv.scales)

    def landmark_update(
        self, kv: KV, k_mean: Float32, v_mean: Float32, start: int | Tensor, block_size: int
    ) -> None:
        first = start if isinstance(start, int) else int(start[0])
        self._active.landmark_update(
            kv.k, kv.v, k_mean, v_mean, first, kv.length, block_size, kv.pages, kv.page_rows, kv.scales
        )

    def subquadratic_attention(
        self,
        q: Tensor,
        kv: KV,
        k_mean: Float32,
        v_mean: Float32,
        global_rows: Int32,
        window: int,
        block_size: int,
        strides: int,
        count_bias: int,
        o: Tensor,
    ) -> None:
        self._active.subquadratic_attention(
            q,
            kv.k,
            kv.v,
            k_mean,
            v_mean,
            global_rows,
            kv.length,
            window,
            block_size,
            strides,
            count_bias,
            o,
            kv.pages,
            kv.page_rows,
            kv.scales,
        )

    def page_bounds(
        self, kv: KV, k_min: Float32, k_max: Float32, start: int | Tensor, page_size: int
    ) -> None:
        first = start if isinstance(start, int) else int(start[0])
        self._active.page_bounds(
            kv.k, k_min, k_max, first, kv.length, page_size, kv.pages, kv.page_rows, kv.scales
        )

    def page_select(
        self, q: Tensor, k_min: Float32, k_max: Float32, kv: KV, page_size: int, page_list: Int32
    ) -> None:
        self._active.page_select(q, k_min, k_max, kv.length, page_size, page_list)

    def page_attention(self, q: Tensor, kv: KV, page_list: Int32, page_size: int, o: Tensor) -> None:
        self._active.page_attention(
            q, kv.k, kv.v, page_list, kv.length, page_size, o, kv.pages, kv.page_rows, kv.scales
        )

    def vertical_slash_select(
        self, q: Tensor, kv: KV, sink: int, near: int, columns: Int32, distances: Int32
    ) -> None:
        self._active.vertical_slash_select(
            q, kv.k, kv.length, sink, near, columns, distances, kv.pages, kv.page_rows, kv.scales
        )

    def vertical_slash_attention(
        self, q: Tensor, kv: KV, columns: Int32, distances: Int32, o: Tensor
    ) -> None:
        self._active.vertical_slash_attention(
            q, kv.k, kv.v, columns, distances, kv.length, o, kv.pages, kv.page_rows, kv.scales
        )

    def cache_append(self, k: Tensor, v: Tensor | None, at: int | Tensor, kv: KV) -> None:
        first = at if isinstance(at, int) else int(at[0])
        values = k if v is None else v  # then the cache has none of its own
        self._active.cache_append(k, values, first, kv.k, kv.v, kv.pages, kv.page_rows, kv.scales)

    @property
    def _active(self) -> Kernels:
        if self._kernels is None:
            raise RuntimeError("activate() the attention provider before its operators")
        return self._kernels
