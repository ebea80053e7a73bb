"""Model shapes that need no download: speed and memory do not depend on the weights' values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A Llama-family decoder with tied embeddings."""

    hidden: int
    layers: int
    query_heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocab: int
    context: int


SHAPES = {
    "smollm2-135m": Shape(576, 30, 9, 3, 64, 1536, 49152, 32768),
    "llama-3.2-1b": Shape(2048, 16, 32, 8, 64, 8192, 128256, 131072),
}
