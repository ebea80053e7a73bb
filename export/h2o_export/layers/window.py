"""Sliding-window attention: grouped queries, each token of which sees the last keys up to its own."""

from __future__ import annotations

from typing import ClassVar

from h2o_export.architecture.config import ModelConfig
from h2o_export.layers.grouped_query import GroupedQuery
from h2o_runtime.layer_spec import LayerSpec


class Window(GroupedQuery):
    """Its dense graphs are those of grouped queries; `LayerSpec.window` tells how many keys."""

    name: ClassVar[str] = "window"
    title: ClassVar[str] = "sliding-window attention"

    def spec(self, config: ModelConfig) -> LayerSpec:
        return super().spec(config).model_copy(update={"window": config.window})
