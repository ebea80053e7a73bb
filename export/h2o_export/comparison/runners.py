"""Polygraphy runners around the runtime's own backends and attention providers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata

from h2o_runtime.attention import AttentionProvider, PartialSoftmax
from h2o_runtime.backends import Backend
from h2o_runtime.config import PrefillConfig
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.kv import KV
from h2o_runtime.manifest import GraphSpec, TensorSpec

Feed = dict[str, NDArray[Any]]


class _GraphRunner(BaseRunner):  # type: ignore[misc]
    """A runner whose interface is that of one graph of a bundle, executed on a device of the runtime's."""

    def __init__(self, name: str, graph: GraphSpec, device: Device) -> None:
        super().__init__(name=name)
        self.graph = graph
        self.device = device

    def get_input_metadata_impl(self) -> TensorMetadata:
        metadata = TensorMetadata()
        for spec in self.graph.inputs:
            shape = [size if isinstance(size, int) else None for size in spec.shape]
            metadata.add(spec.name, dtype=np.dtype(spec.dtype), shape=shape)
        return metadata

    def infer_impl(self, feed_dict: Feed) -> OrderedDict[str, NDArray[Any]]:
        feed = {name: np.asarray(array, order="C") for name, array in feed_dict.items()}
        sizes = {
            dimension: size
            for spec in self.graph.inputs
            for dimension, size in zip(spec.shape, feed[spec.name].shape, strict=True)
            if isinstance(dimension, str)
        }
        outputs = {spec.name: self._empty(spec, sizes) for spec in self.graph.outputs}
        self.inference_time = 0.0
        self.compute(feed, outputs)
        return OrderedDict((name, self.device.download(tensor).copy()) for name, tensor in outputs.items())

    def compute(self, feed: Feed, outputs: dict[str, Tensor]) -> None:
        """Fill `outputs`, which are on the device, from `feed`, which is on the host."""
        raise NotImplementedError("a runner says how its graph is computed")

    def put(self, array: NDArray[Any]) -> Tensor:
        """A copy on the device."""
        tensor = self.device.empty(array.shape, array.dtype)
        self.device.upload(array, tensor)
        return tensor

    def _empty(self, spec: TensorSpec, sizes: dict[str, int]) -> Tensor:
        shape = tuple(sizes[size] if isinstance(size, str) else size for size in spec.shape)
        return self.device.empty(shape, np.dtype(spec.dtype))


class BackendRunner(_GraphRunner):
    """A dense graph on one of the runtime's backends; the backend has that graph activated already."""

    def __init__(self, backend: Backend, graph: GraphSpec, device: Device) -> None:
        super().__init__(backend.name, graph, device)
        self.backend = backend

    def compute(self, feed: Feed, outputs: dict[str, Tensor]) -> None:
        self.backend.infer(self.graph.name, {name: self.put(array) for name, array in feed.items()}, outputs)


class ProviderRunner(_GraphRunner):
    """An attention graph by the operators of an attention provider, which is active already."""

    def __init__(
        self, provider: AttentionProvider, graph: GraphSpec, config: PrefillConfig, device: Device
    ) -> None:
        super().__init__(provider.name, graph, device)
        self.provider = provider
        self.config = config

    def compute(self, feed: Feed, outputs: dict[str, Tensor]) -> None:
        compute = {"phase1": self._phase1, "phase2": self._phase2, "decode": self._decode}[self.graph.name]
        compute(feed, outputs)

    def _phase1(self, feed: Feed, out: dict[str, Tensor]) -> None:
        state = PartialSoftmax(out["o"], out["m"], out["l"])
        q, k, v = (self.put(feed[name]) for name in "qkv")
        self.provider.chunked_intra_attention(q, k, v, self.config.chunk_size, state, out["colsum"])

    def _phase2(self, feed: Feed, out: dict[str, Tensor]) -> None:
        names = ("q", "k_cache", "v_cache", "memory", "m_intra", "l_intra")
        q, k_cache, v_cache, memory, m, l = (self.put(feed[name]) for name in names)
        state = PartialSoftmax(out["o"], m, l)
        self.device.upload(feed["o_intra"], state.o)
        score = out["score_next"]
        self.device.upload(feed["score"], score)
        start, stop = (int(value) for value in feed["chunk_range"])
        kv = KV(k_cache, v_cache, stop)
        rows = self.device.empty(memory.shape, np.float32)
        self.provider.memory_fused_attention(q, kv, memory, state, rows)
        if self.config.score == "window":
            window, chunk = q[-self.config.score_window :], score[start:stop]
            self.provider.candidate_score(window, k_cache[start:stop], kv, memory, rows, chunk)
        self.provider.scatter_scores(score, memory, rows, add=self.config.score == "colsum")
        self.provider.memory_select(
            score, memory, start, stop, self.config.local, self.config.sink, out["memory_next"]
        )

    def _decode(self, feed: Feed, out: dict[str, Tensor]) -> None:
        q, k_cache, v_cache = (self.put(feed[name]) for name in ("q", "k_cache", "v_cache"))
        self.provider.cached_attention(q, KV(k_cache, v_cache, int(feed["length"])), out["o"])
