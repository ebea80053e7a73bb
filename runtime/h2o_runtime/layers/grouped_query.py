"""Grouped-query attention: dense graphs produce q, k and v as attention reads them, so hooks do nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from h2o_runtime.layers.kind import LayerKind


@dataclass(frozen=True)
class GroupedQuery(LayerKind):
    name: ClassVar[str] = "grouped-query"
    title: ClassVar[str] = "grouped-query attention"
