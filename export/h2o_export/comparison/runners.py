"""Polygraphy runners around the runtime's own backends and attention providers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata

from h2o_runtime.attention import AttentionProvider, AttentionShape, PartialSoftmax
from h2o_runtime.backends import Backend
from h2o_runtime.config import PrefillConfig
from h2o_runtime.manifest import GraphSpec, ModelSpec, TensorSpec

Feed = dict[str, NDArray[Any]]


def attention_shape(model: ModelSpec) -> AttentionShape:
    return AttentionShape(
        model.query_heads, model.kv_heads, model.head_size, model.scale, np.dtype(model.dtype)
    )


class _GraphRunner(BaseRunner):  # type: ignore[misc]
    """A runner whose interface is that of one graph of a bundle."""

    def __init__(self, name: str, graph: GraphSpec) -> None:
        super().__init__(name=name)
        self.graph = graph

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
        outputs = {spec.name: _empty(spec, sizes) for spec in self.graph.outputs}
        self.inference_time = 0.0
        return OrderedDict(self.compute(feed, outputs))

    def compute(self, feed: Feed, outputs: Feed) -> Feed:
        raise NotImplementedError("a runner says how its graph is computed")


class BackendRunner(_GraphRunner):
    """A dense graph on one of the runtime's backends; the backend has that graph activated already."""

    def __init__(self, backend: Backend, graph: GraphSpec) -> None:
        super().__init__(backend.name, graph)
        self.backend = backend

    def compute(self, feed: Feed, outputs: Feed) -> Feed:
        self.backend.infer(self.graph.name, feed, outputs)
        return outputs


class ProviderRunner(_GraphRunner):
    """An attention graph by the operators of an attention provider, which is active already."""

    def __init__(self, provider: AttentionProvider, graph: GraphSpec, config: PrefillConfig) -> None:
        super().__init__(provider.name, graph)
        self.provider = provider
        self.config = config

    def compute(self, feed: Feed, outputs: Feed) -> Feed:
        compute = {"phase1": self._phase1, "phase2": self._phase2, "decode": self._decode}[self.graph.name]
        compute(feed, outputs)
        return outputs

    def _phase1(self, feed: Feed, out: Feed) -> None:
        state = PartialSoftmax(out["o"], out["m"], out["l"])
        self.provider.chunked_intra_attention(
            feed["q"], feed["k"], feed["v"], self.config.chunk_size, state, out["colsum"]
        )

    def _phase2(self, feed: Feed, out: Feed) -> None:
        state = PartialSoftmax(out["o"], feed["m_intra"].copy(), feed["l_intra"].copy())
        state.o[:] = feed["o_intra"]
        score, memory = out["score_next"], feed["memory"]
        score[:] = feed["score"]
        start, stop = (int(value) for value in feed["chunk_range"])
        rows = np.empty(memory.shape, np.float32)
        heads = np.arange(len(memory))
        caches = feed["k_cache"], feed["v_cache"]
        self.provider.memory_fused_attention(feed["q"], *caches, memory, state, rows)
        if self.config.score == "colsum":
            score[memory.T, heads] += rows.T
        else:
            window, k_cache = feed["q"][-self.config.score_window :], feed["k_cache"]
            chunk = score[start:stop]
            self.provider.candidate_score(window, k_cache[start:stop], k_cache, memory, rows, chunk)
            score[memory.T, heads] = rows.T
        self.provider.memory_select(
            score, memory, start, stop, self.config.local, self.config.sink, out["memory_next"]
        )

    def _decode(self, feed: Feed, out: Feed) -> None:
        self.provider.cached_attention(
            feed["q"], feed["k_cache"], feed["v_cache"], int(feed["length"]), out["o"]
        )


def _empty(spec: TensorSpec, sizes: dict[str, int]) -> NDArray[Any]:
    shape = tuple(sizes[size] if isinstance(size, str) else size for size in spec.shape)
    return np.empty(shape, np.dtype(spec.dtype))
