"""The exporter's half of `toy_layer`: grouped queries of one key head, whose scale leaves queries a factor of 2."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import nn

from h2o_export.architecture.config import ModelConfig
from h2o_export.layers.grouped_query import GroupedQuery
from h2o_runtime.layer_spec import LayerSpec


class Narrow(GroupedQuery):
    name: ClassVar[str] = "narrow"
    title: ClassVar[str] = "one doubled head"

    def spec(self, config: ModelConfig) -> LayerSpec:
        spec = super().spec(config)
        return spec.model_copy(update={"kv_heads": 1, "scale": spec.scale / 2})

    def projection(self, config: ModelConfig) -> nn.Module:
        return super().projection(replace(config, kv_heads=1))
