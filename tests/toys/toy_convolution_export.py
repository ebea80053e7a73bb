"""The exporter's half of `toy_convolution`: a token's query, plus a half and a quarter of those before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from h2o_export.architecture.config import ModelConfig
from h2o_export.layers.grouped_query import GroupedQuery
from h2o_export.layers.kind import rows
from h2o_runtime.bundles.manifest import TensorSpec
from h2o_runtime.layer_spec import LayerSpec, StateSizes

BEFORE = 2  # tokens that a token sees


class Convolution(GroupedQuery):
    name: ClassVar[str] = "convolution"
    title: ClassVar[str] = "a short convolution"

    def spec(self, config: ModelConfig) -> LayerSpec:
        return super().spec(config).model_copy(update={"state": StateSizes({"before": BEFORE})})

    def projection(self, config: ModelConfig) -> nn.Module:
        return Projection(config)

    def interface(self, config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
        return tuple(rows(name, (config.query_heads, config.head_size), dtype) for name in ("q", "seen"))

    def given(self, config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
        shape: Any = (BEFORE, config.query_heads, config.head_size)
        return (TensorSpec(name="earlier", dtype=dtype, shape=shape),)  # type: ignore[arg-type]

    def reference(self, given: Mapping[str, Any], spec: LayerSpec) -> Any:
        return given["q"]


class Projection(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.query_heads
        self.q_proj = nn.Linear(config.hidden_size, config.query_heads * config.head_size, config.qkv_bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, earlier: Tensor) -> tuple[Tensor, Tensor]:
        n = x.shape[0]
        own = self.q_proj(x).view(n, self.heads, -1)
        seen = torch.cat((earlier, own))
        return own + seen[1 : n + 1] / 2 + seen[:n] / 4, own
