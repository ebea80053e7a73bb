"""The attention operators on the CUDA kernels of h2o_plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from h2o_runtime.attention.base import AttentionShape, NextMemory, PartialSoftmax
from h2o_runtime.attention.cuda_arguments import (
    CudaScratch,
    address_or_null,
    cache_addresses,
    key_addresses,
    state_addresses,
)
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.devices.cuda_array import CudaArray
from h2o_runtime.kv import KV

if TYPE_CHECKING:
    from h2o_plugins._cuda import Kernels

MOST_KEY, MOST_VALUE = 576, 512  # elements of a head
ROW_BYTES = 16  # of which a head's row is a multiple


class NativeCudaProvider:
    """Enqueues on the device's attention lane; nothing waits, and nothing is allocated once sizes have been met."""

    name = "native-cuda"
    in_graphs = False

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._kernels: Kernels | None = None
        self._scratch = CudaScratch(device)

    @staticmethod
    def takes(shape: AttentionShape) -> bool:
        sizes = (shape.head_size, MOST_KEY), (shape.value_size, MOST_VALUE)
        return all(size <= most and size * shape.dtype.itemsize % ROW_BYTES == 0 for size, most in sizes)

    def activate(self, shape: AttentionShape) -> None:
        self._kv_heads = shape.kv_heads
        self._kernels = self._device.module.Kernels(
            query_heads=shape.query_heads,
            kv_heads=shape.kv_heads,
            head_size=shape.head_size,
            scale=shape.scale,
            half=shape.half,
            value_size=shape.value_size,
        )

        # Every step leaves the counters as it finds them: zeros. Steps follow one another on one stream.
        self._arrivals = self._device.zeros((shape.query_heads,), np.uint32)

    def deactivate(self) -> None:
        self._kernels = None

    def chunked_intra_attention(
        self,
        q: CudaArray,
        k: CudaArray,
        v: CudaArray,
        chunk_size: int,
        state: PartialSoftmax,
        colsum: CudaArray | None,
    ) -> None:
        self._active.chunked_intra_attention(
            self._device.lanes.attention,
            n=len(q),
            chunk_size=chunk_size,
            score_heads=self._kv_heads if colsum is None else colsum.shape[1],
            q=q.address,
            k=k.address,
            v=v.address,
            **state_addresses(state),
            colsum=address_or_null(colsum),
        )

    def memory_fused_attention(
        self, q: CudaArray, kv: KV, memory: CudaArray, state: PartialSoftmax, colsum: CudaArray | None
    ) -> None:
        heads, slots = memory.shape
        workspace = self._scratch.reserve(self._active.memory_attention_workspace(len(q), slots, heads))
        self._active.memory_fused_attention(
            self._device.lanes.attention,
            n=len(q),
            slots=slots,
            score_heads=heads,
            q=q.address,
            **cache_addresses(kv),
            memory=memory.address,
            **state_addresses(state),
            colsum=address_or_null(colsum),
            **workspace,
        )

    def tiled_memory_attention(
        self, q: CudaArray, kv: KV, memory: CudaArray, tile: int, state: PartialSoftmax
    ) -> None:
        heads, slots = memory.shape[1:]
        self._active.tiled_memory_attention(
            self._device.lanes.attention,
            n=len(q),
            tile=tile,
            slots=slots,
            score_heads=heads,
            q=q.address,
            **cache_addresses(kv),
            memory=memory.address,
            **state_addresses(state),
        )

    def candidate_score(
        self,
        q_window: CudaArray,
        k: CudaArray,
        kv: KV,
        memory: CudaArray,
        score_memory: CudaArray,
        score_chunk: CudaArray,
    ) -> None:
        heads, slots = memory.shape
        need = self._active.candidate_score_workspace(len(q_window), len(k), slots, heads)
        workspace = self._scratch.reserve(need)
        self._active.candidate_score(
            self._device.lanes.attention,
            window=len(q_window),
            n=len(k),
            slots=slots,
            score_heads=heads,
            q_window=q_window.address,
            k=k.address,
            **key_addresses(kv),
            memory=memory.address,
            score_mem=score_memory.address,
            score_chunk=score_chunk.address,
            **workspace,
        )

    def memory_select(
        self,
        score: CudaArray,
        memory: CudaArray,
        start: int,
        stop: int,
        local: int,
        sink: int,
        out: CudaArray,
    ) -> None:
        self.memory_step(score, memory, None, False, start, stop, local, sink, NextMemory(out))

    def memory_step(
        self,
        score: CudaArray,
        memory: CudaArray,
        values: CudaArray | None,
        add: bool,
        start: int,
        stop: int,
        local: int,
        sink: int,
        into: NextMemory,
    ) -> None:
        heads, slots = into.memory.shape
        self._device.module.memory_step(
            self._device.lanes.attention,
            score_heads=heads,
            capacity=len(score),
            previous_slots=memory.shape[1],
            local=local,
            heavy=slots - local,
            sink=sink,
            start=start,
            stop=stop,
            memory=memory.address,
            values=address_or_null(values),
            replace=not add,
            score=score.address,
            memory_next=into.memory.address,
            last=address_or_null(into.last),
            set=address_or_null(into.boundary),
            set_scores=address_or_null(into.scores),
        )

    def query_select(
        self,
        q: CudaArray,
        kv: KV,
        candidates: CudaArray,
        past: CudaArray,
        tile: int,
        stride: int,
        share: int,
        reach: int,
        local: int,
        sink: int,
        out: CudaArray,
    ) -> None:
        heads, slots = out.shape[1:]
        sizes = {
            "n": len(q),
            "tile": tile,
            "stride": stride,
            "slots": candidates.shape[2],
            "score_heads": heads,
        }
        workspace = self._scratch.reserve(self._active.query_select_workspace(capacity=len(kv.k), **sizes))
        self._active.query_select(
            self._device.lanes.attention,
            **sizes,
            share=share,
            reach=reach,
            local=local,
            heavy=slots - local,
            sink=sink,
            q=q.address,
            **key_addresses(kv),
            candidates=candidates.address,
            past=past.address,
            memory_next=out.address,
            **workspace,
        )

    def cached_attention(self, q: CudaArray, kv: KV, o: CudaArray) -> None:
        need = self._active.cached_attention_workspace(len(q), len(kv.k))
        workspace = self._scratch.reserve_for(kv, need)
        self._active.cached_attention(
            self._device.lanes.attention,
            n=len(q),
            q=q.address,
            **cache_addresses(kv),
            length=self._scratch.length(kv),
            o=o.address,
            **workspace,
        )

    def step_attention(self, q: CudaArray, k: CudaArray, v: CudaArray | None, kv: KV, o: CudaArray) -> None:
        need = self._active.cached_attention_workspace(1, len(kv.k))
        workspace = self._scratch.reserve_for(kv, need)
        self._active.step_attention(
            self._device.lanes.attention,
            q=q.address,
            k=k.address,
            v=(k if v is None else v).address,
            **cache_addresses(kv),
            length=self._scratch.length(kv),
            o=o.address,
            arrivals=self._arrivals.address,
            **workspace,
        )

    def scored_attention(self, q: CudaArray, kv: KV, o: CudaArray) -> None:
        need = self._active.scored_attention_workspace(len(kv.k))
        workspace = self._scratch.reserve_for(kv, need)
        self._active.scored_attention(
            self._device.lanes.attention,
            q=q.address,
            **cache_addresses(kv),
            length=self._scratch.length(kv),
            o=o.address,
            seen=address_or_null(kv.seen),
            **workspace,
        )

    def landmark_update(
        self, kv: KV, k_mean: CudaArray, v_mean: CudaArray, start: int | CudaArray, block_size: int
    ) -> None:
        if start == kv.length:
            return
        self._active.landmark_update(
            self._device.lanes.attention,
            blocks=len(k_mean),
            **cache_addresses(kv),
            k_mean=k_mean.address,
            v_mean=v_mean.address,
            **self._scratch.new_rows(kv, start),
            block_size=block_size,
        )

    def subquadratic_attention(
        self,
        q: CudaArray,
        kv: KV,
        k_mean: CudaArray,
        v_mean: CudaArray,
        global_rows: CudaArray,
        window: int,
        block_size: int,
        strides: int,
        count_bias: int,
        o: CudaArray,
    ) -> None:
        self._active.subquadratic_attention(
            self._device.lanes.attention,
            n=len(q),
            slots=len(global_rows),
            q=q.address,
            **cache_addresses(kv),
            k_mean=k_mean.address,
            v_mean=v_mean.address,
            global_rows=global_rows.address,
            length=self._scratch.length(kv),
            window=window,
            block_size=block_size,
            strides=strides,
            count_bias=count_bias,
            o=o.address,
        )

    def page_bounds(
        self, kv: KV, k_min: CudaArray, k_max: CudaArray, start: int | CudaArray, page_size: int
    ) -> None:
        if start == kv.length:
            return
        self._active.page_bounds(
            self._device.lanes.attention,
            blocks=len(k_min),
            **key_addresses(kv),
            k_min=k_min.address,
            k_max=k_max.address,
            **self._scratch.new_rows(kv, start),
            page_size=page_size,
        )

    def page_select(
        self, q: CudaArray, k_min: CudaArray, k_max: CudaArray, kv: KV, page_size: int, page_list: CudaArray
    ) -> None:
        heads, budget = page_list.shape
        workspace = self._scratch.reserve_step(self._active.page_select_workspace(len(k_min), heads))
        self._active.page_select(
            self._device.lanes.attention,
            blocks=len(k_min),
            q=q.address,
            k_min=k_min.address,
            k_max=k_max.address,
            length=self._scratch.length(kv),
            page_size=page_size,
            budget=budget,
            score_heads=heads,
            page_list=page_list.address,
            **workspace,
        )

    def page_attention(
        self, q: CudaArray, kv: KV, page_list: CudaArray, page_size: int, o: CudaArray
    ) -> None:
        heads, slots = page_list.shape
        self._active.page_attention(
            self._device.lanes.attention,
            slots=slots,
            score_heads=heads,
            q=q.address,
            **cache_addresses(kv),
            page_list=page_list.address,
            length=self._scratch.length(kv),
            page_size=page_size,
            o=o.address,
        )

    def vertical_slash_select(
        self, q: CudaArray, kv: KV, sink: int, near: int, columns: CudaArray, distances: CudaArray
    ) -> None:
        keys = key_addresses(kv)
        workspace = self._scratch.reserve(
            self._active.vertical_slash_select_workspace(len(q), keys["capacity"])
        )
        self._active.vertical_slash_select(
            self._device.lanes.attention,
            n=len(q),
            q=q.address,
            **keys,
            length=self._scratch.length(kv),
            vertical=columns.shape[1],
            slash=distances.shape[1],
            sink=sink,
            near=near,
            columns=columns.address,
            distances=distances.address,
            **workspace,
        )

    def vertical_slash_attention(
        self, q: CudaArray, kv: KV, columns: CudaArray, distances: CudaArray, o: CudaArray
    ) -> None:
        cache, slash = cache_addresses(kv), distances.shape[1]
        nbytes = self._active.vertical_slash_attention_workspace(len(q), cache["capacity"], slash)
        workspace = self._scratch.reserve(nbytes)
        self._active.vertical_slash_attention(
            self._device.lanes.attention,
            n=len(q),
            q=q.address,
            **cache,
            vertical=columns.shape[1],
            columns=columns.address,
            slash=slash,
            distances=distances.address,
            length=self._scratch.length(kv),
            o=o.address,
            **workspace,
        )

    def cache_append(self, k: CudaArray, v: CudaArray | None, at: int | CudaArray, kv: KV) -> None:
        lanes = self._device.lanes  # of a step, both are one
        where = {"first": at} if isinstance(at, int) else {"position": at.address}
        self._active.cache_append(
            lanes.dense,
            n=len(k),
            k=k.address,
            v=(k if v is None else v).address,
            **where,
            **cache_addresses(kv),
        )

    def scatter_scores(self, score: CudaArray, rows: CudaArray, values: CudaArray, add: bool) -> None:
        heads, slots = rows.shape
        self._device.module.score_update(
            self._device.lanes.attention,
            score_heads=heads,
            slots=slots,
            memory=rows.address,
            values=values.address,
            replace=not add,
            score=score.address,
        )

    @property
    def _active(self) -> Kernels:
        if self._kernels is None:
            raise RuntimeError("activate() the attention provider before its operators")
        return self._kernels
