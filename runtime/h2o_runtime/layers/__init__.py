"""Layer kinds by name. A new kind is a file in this folder and its class in `LAYERS`.

The file of the same name in h2o_export.layers makes its dense graphs.
"""

from __future__ import annotations

from h2o_runtime.components.registry import Registry
from h2o_runtime.layers.base import LayerKind, LayerResources, LoadedLayers
from h2o_runtime.layers.delta import GatedDelta
from h2o_runtime.layers.grouped_query import GroupedQuery
from h2o_runtime.layers.latent import Latent
from h2o_runtime.layers.window import Window

__all__ = ["LAYERS", "LayerKind", "LayerResources", "LoadedLayers"]

LAYERS: Registry[LayerKind] = Registry(
    GroupedQuery,
    Latent,
    Window,
    GatedDelta,
    base=LayerKind,
    field="layer kind",
    group="h2o_edge.layers",
)
