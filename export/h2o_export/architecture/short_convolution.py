"""Sizes of layers that are short convolutions, as `config.json` has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.kind_sizes import KindSizes
from h2o_export.architecture.values import integer


@dataclass(frozen=True)
class ConvolutionConfig(KindSizes):
    """kernel: rows that the convolution sees, a token's own among them; biased: whether all of it has biases."""

    kernel: int
    biased: bool

    @classmethod
    def read(cls, raw: dict[str, Any]) -> ConvolutionConfig:
        """Of a parsed `config.json`. Raises CheckpointError."""
        return cls(integer(raw, "conv_L_cache", least=2), bool(raw["conv_bias"]))
