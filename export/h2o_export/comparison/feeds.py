"""Inputs for graphs that are compared by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_export.comparison.runners import Feed
from h2o_runtime.bundle import Bundle
from h2o_runtime.config import PrefillConfig
from h2o_runtime.engines import EngineManifest
from h2o_runtime.errors import ConfigError
from h2o_runtime.manifest import GraphSpec


@dataclass(frozen=True)
class Sizes:
    """capacity  rows of the caches; an engine takes those that it was built for, and no others
    batch     most rows of Phase 1
    """

    capacity: int
    batch: int

    @classmethod
    def few(cls, config: PrefillConfig) -> Sizes:
        """As few as tell a graph's errors, where any will do."""
        return cls(2 * config.chunk_size, 2 * config.chunk_size)

    @classmethod
    def of(cls, engines: EngineManifest) -> Sizes:
        return cls(engines.max_context, engines.batch_size)


def attention_feed(bundle: Bundle, graph: GraphSpec, sizes: Sizes) -> Feed:
    """Random inputs of a real step: a chunk and a half, the second chunk, or one token at its end.

    Raises ConfigError when the sizes leave no room for a second chunk.
    """
    model, config = bundle.manifest.model, bundle.manifest.prefill
    chunk = config.chunk_size
    if sizes.capacity < 2 * chunk:
        raise ConfigError(
            f"the engines were built for a context of {sizes.capacity}, which ends before a second chunk of "
            f"{chunk} does: build them for {2 * chunk} at least, or leave out the stage attention",
            field="max_context",
        )
    draw = np.random.default_rng(7)
    dtype = np.dtype(model.dtype)

    def normal(rows: int, heads: int, scale: float = 1.0) -> NDArray[Any]:
        return (draw.standard_normal((rows, heads, model.head_size)) * scale).astype(dtype)

    if graph.name == "phase1":
        n = min(chunk + chunk // 2, sizes.batch)
        return {
            "q": normal(n, model.query_heads, 2.0),
            "k": normal(n, model.kv_heads),
            "v": normal(n, model.kv_heads),
        }
    caches = {
        "k_cache": normal(sizes.capacity, model.kv_heads),
        "v_cache": normal(sizes.capacity, model.kv_heads),
    }
    if graph.name == "decode":
        return {"q": normal(1, model.query_heads, 2.0), **caches, "length": np.array(2 * chunk - 3, np.int64)}
    heads = model.kv_heads if config.score_heads == "kv" else model.query_heads
    early = [np.sort(draw.choice(chunk - config.local, config.heavy, replace=False)) for _ in range(heads)]
    local = np.arange(chunk - config.local, chunk)
    return {
        "q": normal(chunk, model.query_heads, 2.0),
        **caches,
        "memory": np.stack([np.concatenate((row, local)) for row in early]).astype(np.int32),
        "o_intra": normal(chunk, model.query_heads),
        "m_intra": draw.standard_normal((chunk, model.query_heads)).astype(np.float32),
        "l_intra": draw.uniform(1, chunk, (chunk, model.query_heads)).astype(np.float32),
        "score": draw.uniform(0, 10, (sizes.capacity, heads)).astype(np.float32),
        "chunk_range": np.array([chunk, 2 * chunk], np.int64),
    }
