"""A short convolution between two gates (Liquid AI, 2025, "LFM2"): a token sees itself and the few before it.

A projection makes two gates and a value of each token. The convolution sums gated values of its last tokens, whose
earlier ones are given, and the second gate multiplies the sum. So dense graphs compute all of it, and between them
nothing is left to do. n tokens, D hidden size, K rows of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from h2o_export.architecture.config import ModelConfig
from h2o_export.architecture.short_convolution import ConvolutionConfig
from h2o_export.layers.blocks import convolved
from h2o_export.layers.kind import LayerKind, rows
from h2o_runtime.bundles.manifest import TensorSpec
from h2o_runtime.layer_spec import LayerSpec, StateSizes


class ShortConvolution(LayerKind):
    """q [n, H, D/H], which is what the next dense graph takes, in the heads of grouped queries where they divide D;
    gated values [n, D]."""

    name: ClassVar[str] = "short-convolution"
    title: ClassVar[str] = "short convolutions"

    def spec(self, config: ModelConfig) -> LayerSpec:
        """Rows and attention of grouped queries, whose buffers and provider it shares."""
        heads, d = math.gcd(config.hidden_size, config.query_heads), config.head_size
        return LayerSpec(
            kind=self.name,
            query_heads=heads,
            kv_heads=math.gcd(heads, config.kv_heads),
            head_size=d,
            value_size=d,
            query_size=config.hidden_size // heads,
            out_size=config.hidden_size // heads,
            rotary_size=0,
            scale=1.0 / math.sqrt(d),
            state=StateSizes(
                {"width": config.hidden_size, "tail": config.own_sizes(ConvolutionConfig).kernel - 1}
            ),
        )

    def projection(self, config: ModelConfig) -> nn.Module:
        return GatedConvolution(config.own_sizes(ConvolutionConfig), self.spec(config))

    def output(self, config: ModelConfig) -> nn.Module:
        return nn.Linear(config.hidden_size, config.hidden_size, config.own_sizes(ConvolutionConfig).biased)

    def interface(self, config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
        spec = self.spec(config)
        q = rows("q", (spec.query_heads, spec.query_size), dtype)
        return q, rows("gated", (config.hidden_size,), dtype)

    def given(self, config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
        shape = (config.own_sizes(ConvolutionConfig).kernel - 1, config.hidden_size)
        return (TensorSpec(name="tail", dtype=dtype, shape=shape),)  # type: ignore[arg-type]

    def checkpoint_name(self, parameter: str) -> str:
        return f"conv.{parameter.replace('o_proj', 'out_proj')}"

    def reference(self, given: Mapping[str, NDArray[Any]], spec: LayerSpec) -> NDArray[np.float64]:
        return given["q"].astype(np.float64)


class GatedConvolution(nn.Module):
    """Hidden states x [n, D], and the gated values of the K - 1 tokens before → what `interface` names."""

    def __init__(self, sizes: ConvolutionConfig, spec: LayerSpec) -> None:
        super().__init__()
        width = spec.query_heads * spec.query_size
        self.row = (spec.query_heads, spec.query_size)
        self.in_proj = nn.Linear(width, 3 * width, sizes.biased)
        self.conv = nn.Conv1d(width, width, sizes.kernel, groups=width, bias=sizes.biased)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        first, second, value = self.in_proj(x).chunk(3, dim=-1)
        gated = first * value
        return (second * convolved(tail, gated, self.conv)).view(-1, *self.row), gated
