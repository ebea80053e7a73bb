"""The attention operators on the CUDA kernels of h2o_plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from h2o_runtime.attention.base import AttentionShape, PartialSoftmax
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.devices.cuda_array import CudaArray

if TYPE_CHECKING:
    from h2o_plugins._cuda import Kernels


class NativeCudaProvider:
    """Enqueues on the device's attention lane; nothing waits, and nothing is allocated once sizes have been met."""

    name = "native-cuda"

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._kernels: Kernels | None = None
        self._integers = device.empty(
            (2,), np.int64
        )  # chunk range, or length: read by the kernel right behind
        self._workspace = device.empty((0,), np.uint8)
        self._step_workspace = device.empty((0,), np.uint8)  # apart: a recorded step keeps its address

    def activate(self, shape: AttentionShape) -> None:
        self._kv_heads = shape.kv_heads
        self._kernels = self._device.module.Kernels(
            query_heads=shape.query_heads,
            kv_heads=shape.kv_heads,
            head_size=shape.head_size,
            scale=shape.scale,
            half=shape.half,
        )

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
            o=state.o.address,
            m=state.m.address,
            l=state.l.address,
            colsum=_address(colsum),
        )

    def memory_fused_attention(
        self,
        q: CudaArray,
        k_cache: CudaArray,
        v_cache: CudaArray,
        memory: CudaArray,
        state: PartialSoftmax,
        colsum: CudaArray | None,
    ) -> None:
        heads, slots = memory.shape
        workspace = self._reserve(self._active.memory_attention_workspace(len(q), slots, heads))
        self._active.memory_fused_attention(
            self._device.lanes.attention,
            n=len(q),
            slots=slots,
            score_heads=heads,
            q=q.address,
            k_cache=k_cache.address,
            v_cache=v_cache.address,
            memory=memory.address,
            o=state.o.address,
            m=state.m.address,
            l=state.l.address,
            colsum=_address(colsum),
            workspace=workspace.address,
            workspace_bytes=workspace.nbytes,
        )

    def candidate_score(
        self,
        q_window: CudaArray,
        k: CudaArray,
        k_cache: CudaArray,
        memory: CudaArray,
        score_memory: CudaArray,
        score_chunk: CudaArray,
    ) -> None:
        heads, slots = memory.shape
        need = self._active.candidate_score_workspace(len(q_window), len(k), slots, heads)
        workspace = self._reserve(need)
        self._active.candidate_score(
            self._device.lanes.attention,
            window=len(q_window),
            n=len(k),
            slots=slots,
            score_heads=heads,
            q_window=q_window.address,
            k=k.address,
            k_cache=k_cache.address,
            memory=memory.address,
            score_memory=score_memory.address,
            score_chunk=score_chunk.address,
            workspace=workspace.address,
            workspace_bytes=workspace.nbytes,
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
        heads, slots = out.shape
        lane = self._device.lanes.attention
        lane.write_integers(self._integers.address, [start, stop])
        self._active.memory_select(
            lane,
            score_heads=heads,
            previous_slots=memory.shape[1],
            local=local,
            heavy=slots - local,
            sink=sink,
            score=score.address,
            memory=memory.address,
            chunk_range=self._integers.address,
            memory_next=out.address,
        )

    def cached_attention(
        self, q: CudaArray, k_cache: CudaArray, v_cache: CudaArray, length: int, o: CudaArray
    ) -> None:
        self._device.lanes.attention.write_integers(self._integers.address, [length])
        need = self._active.cached_attention_workspace(len(q), len(k_cache))
        self._attend(q, k_cache, v_cache, self._integers, o, self._reserve(need))

    def step(
        self,
        q: CudaArray,
        k: CudaArray,
        v: CudaArray,
        k_cache: CudaArray,
        v_cache: CudaArray,
        position: CudaArray,
        length: CudaArray,
        o: CudaArray,
    ) -> None:
        """Decode's part of a layer: append one row to the cache and attend to all up to it.

        q, o [1, Hq, d]; k, v [1, Hkv, d]; position and length are int64 [1] on the device, so that a recording
        of this serves every length.
        """
        need = self._active.cached_attention_workspace(1, len(k_cache))
        if self._step_workspace.nbytes < need:
            self._step_workspace = self._device.empty((need,), np.uint8)
        self._active.cache_append(
            self._device.lanes.attention,
            k=k.address,
            v=v.address,
            position=position.address,
            k_cache=k_cache.address,
            v_cache=v_cache.address,
        )
        self._attend(q, k_cache, v_cache, length, o, self._step_workspace)

    def _attend(
        self,
        q: CudaArray,
        k_cache: CudaArray,
        v_cache: CudaArray,
        length: CudaArray,
        o: CudaArray,
        workspace: CudaArray,
    ) -> None:
        self._active.cached_attention(
            self._device.lanes.attention,
            n=len(q),
            capacity=len(k_cache),
            q=q.address,
            k_cache=k_cache.address,
            v_cache=v_cache.address,
            length=length.address,
            o=o.address,
            workspace=workspace.address,
            workspace_bytes=workspace.nbytes,
        )

    def _reserve(self, nbytes: int) -> CudaArray:
        if self._workspace.nbytes < nbytes:
            self._workspace = self._device.empty((0,), np.uint8)  # the old one goes before the new one comes
            self._workspace = self._device.empty((nbytes,), np.uint8)
        return self._workspace

    @property
    def _active(self) -> Kernels:
        if self._kernels is None:
            raise RuntimeError("activate() the attention provider before its operators")
        return self._kernels


def _address(array: CudaArray | None) -> int:
    return 0 if array is None else array.address
