"""What layers of a model have of their own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerSizes:
    """One layer's values of the fields of `ModelConfig` with the same names."""

    head_size: int
    kv_heads: int
    rotated_size: int
    intermediate_size: int
    keys_as_values: bool = False
    source: int | None = None
    lends: bool = False


@dataclass(frozen=True)
class LayerEmbedding:
    """Each layer's own embedding of a token, `size` elements of it, for `vocabulary` tokens."""

    size: int
    vocabulary: int
