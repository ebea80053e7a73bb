"""Layer kinds by name. To add one is a file beside these and a line in `LAYERS`; a family names its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from h2o_export.families import FAMILIES
from h2o_export.layers.base import LayerKind
from h2o_export.layers.grouped_query import GroupedQuery
from h2o_export.layers.latent import Latent

__all__ = ["LAYERS", "LayerKind", "layer_kind"]

LAYERS: Mapping[str, LayerKind] = MappingProxyType({kind.name: kind for kind in (GroupedQuery(), Latent())})


def layer_kind(family: str) -> LayerKind:
    """The kind of the layers of a family, which is a key of `FAMILIES`."""
    return LAYERS[FAMILIES[family].layers]
