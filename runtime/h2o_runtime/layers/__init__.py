"""Layer kinds by name. A new kind is a file in this folder and its class in `LAYERS`.

The file of the same name in h2o_export.layers makes its dense graphs.
"""

from __future__ import annotations

from numpy.typing import DTypeLike

from h2o_runtime.components.registry import Registry
from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.layers.delta import GatedDelta
from h2o_runtime.layers.grouped_query import GroupedQuery
from h2o_runtime.layers.kind import LayerKind, LayerResources, LoadedLayers, StateLayout
from h2o_runtime.layers.latent import Latent
from h2o_runtime.layers.mamba2 import Mamba2
from h2o_runtime.layers.short_convolution import ShortConvolution
from h2o_runtime.layers.window import Window

__all__ = ["LAYERS", "LayerKind", "LayerResources", "LoadedLayers", "state_layout"]

LAYERS: Registry[LayerKind] = Registry(
    GroupedQuery,
    Latent,
    Window,
    GatedDelta,
    Mamba2,
    ShortConvolution,
    base=LayerKind,
    field="layer kind",
    group="h2o_edge.layers",
)


def state_layout(spec: LayerSpec, dtype: DTypeLike) -> StateLayout | None:
    """What a layer keeps in place of rows; None: it has rows. Raises BundleError for sizes of another kind."""
    return None if spec.state is None else LAYERS[spec.kind].state(spec, dtype)
