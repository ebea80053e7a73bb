"""Layer kinds by name. A new kind is a file in this folder and a line in `LAYERS`; a family names its kinds.

The runtime side is h2o_runtime.layers: `LayerKind.spec` names the kind there.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

from h2o_export.layers.delta import GatedDelta
from h2o_export.layers.grouped_query import (
    GatedQuery,
    GroupedQuery,
    GroupedQueryRotatedFirst,
    GroupedQueryWithoutRotation,
)
from h2o_export.layers.kind import LayerKind
from h2o_export.layers.latent import Latent
from h2o_export.layers.mamba2 import Mamba2
from h2o_export.layers.short_convolution import ShortConvolution
from h2o_export.layers.window import Window
from h2o_runtime.errors import UnsupportedModelError

__all__ = ["LAYERS", "LayerKind", "kind_named"]

LAYERS: Mapping[str, LayerKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            GroupedQuery(),
            GroupedQueryWithoutRotation(),
            GroupedQueryRotatedFirst(),
            GatedQuery(),
            Latent(),
            Window(),
            GatedDelta(),
            Mamba2(),
            ShortConvolution(),
        )
    }
)
GROUP = "h2o_edge.export_layers"  # entry points of other packages


def kind_named(name: str) -> LayerKind:
    """Raises UnsupportedModelError for an unknown name."""
    if name in LAYERS:
        return LAYERS[name]
    for point in entry_points(group=GROUP, name=name):
        kind: LayerKind = point.load()()
        return kind
    raise UnsupportedModelError(f"no layer kind is named {name!r}; there are {', '.join(LAYERS)}")
