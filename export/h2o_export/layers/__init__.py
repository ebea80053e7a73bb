"""Layer kinds by name. A new kind is a file in this folder and a line in `LAYERS`; a family names its kinds.

The runtime side is h2o_runtime.layers: `LayerKind.spec` names the kind there.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

from h2o_export.architecture.config import ModelConfig
from h2o_export.layers.base import LayerKind
from h2o_export.layers.delta import GatedDelta
from h2o_export.layers.grouped_query import (
    GatedQuery,
    GroupedQuery,
    GroupedQueryRotatedFirst,
    GroupedQueryWithoutRotation,
)
from h2o_export.layers.latent import Latent
from h2o_export.layers.mamba2 import Mamba2
from h2o_export.layers.short_convolution import ShortConvolution
from h2o_export.layers.window import Window
from h2o_runtime.errors import UnsupportedModelError
from h2o_runtime.layer_spec import LayerSpec

__all__ = [
    "LAYERS",
    "LayerKind",
    "each_kind",
    "each_spec",
    "kind_named",
    "kinds_with_draft",
    "layer_kind",
    "rotary_size",
]

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


def layer_kind(config: ModelConfig, layer: int) -> LayerKind:
    """The kind of one layer."""
    return kind_named(config.kinds[layer])


def each_kind(config: ModelConfig) -> tuple[LayerKind, ...]:
    """For every layer, in order."""
    return tuple(layer_kind(config, layer) for layer in range(config.layers))


def kinds_with_draft(config: ModelConfig) -> tuple[LayerKind, ...]:
    """As `each_kind`, and last that of the draft layer, if there is one."""
    return each_kind(config) + ((kind_named(config.draft.kind),) if config.draft else ())


def each_spec(config: ModelConfig) -> tuple[LayerSpec, ...]:
    """The manifest's description of every layer, in order."""
    return tuple(
        kind.spec(config.at(layer)).model_copy(update={"rotation": config.rotation(layer)})
        for layer, kind in enumerate(each_kind(config))
    )


def rotary_size(config: ModelConfig, rotation: int) -> int:
    """Elements of a head that a table of angles rotates, in the layers with the most."""
    return max(spec.rotary_size for spec in each_spec(config) if spec.rotation == rotation)
