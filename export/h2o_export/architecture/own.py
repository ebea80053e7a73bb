"""What may differ from one layer of a model to another."""

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
