"""Multi-head attention with grouped queries (Ainslie et al., 2023): q, and one k and v for each group of heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from h2o_export.architecture.config import ModelConfig
from h2o_export.layers.base import LayerKind, causal_attention
from h2o_export.layers.blocks import RMSNorm, rotate
from h2o_runtime.model import LayerSpec


class GroupedQuery(LayerKind):
    """q [n, Hq, d]; k, v [n, Hkv, d], which are what the cache holds; attention gives [n, Hq, d]."""

    name: ClassVar[str] = "grouped-query"
    title: ClassVar[str] = "grouped-query attention"

    def spec(self, config: ModelConfig) -> LayerSpec:
        d = config.head_size
        return LayerSpec(
            kind=self.name,
            query_heads=config.query_heads,
            kv_heads=config.kv_heads,
            head_size=d,
            value_size=d,
            query_size=d,
            out_size=d,
            rotary_size=d,
            scale=1.0 / math.sqrt(d),
        )

    def projection(self, config: ModelConfig) -> nn.Module:
        return QKV(config)

    def output(self, config: ModelConfig) -> nn.Module:
        return nn.Linear(config.query_heads * config.head_size, config.hidden_size, config.o_bias)

    def reference(self, given: Mapping[str, NDArray[Any]], scale: float) -> NDArray[np.float64]:
        return causal_attention(given["q"], given["k"], given["v"], scale)


class QKV(nn.Module):
    """Projections of a layer's attention: hidden states to q, k and v with RoPE applied."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        bias = config.qkv_bias
        self.q_proj = nn.Linear(config.hidden_size, config.query_heads * config.head_size, bias)
        self.k_proj = nn.Linear(config.hidden_size, config.kv_heads * config.head_size, bias)
        self.v_proj = nn.Linear(config.hidden_size, config.kv_heads * config.head_size, bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_size, config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n, d = x.shape[0], self.config.head_size
        q = self.q_proj(x).view(n, self.config.query_heads, d)
        k = self.k_proj(x).view(n, self.config.kv_heads, d)
        v = self.v_proj(x).view(n, self.config.kv_heads, d)
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q, cos, sin), rotate(k, cos, sin), v
