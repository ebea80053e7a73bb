"""Caches own the layout of keys and values. A new cache is a file in this folder and its class in
`CACHES`.
"""

from __future__ import annotations

from h2o_runtime.caches.cache import Cache, KVStore, LayerStore, RetainedRows, Rows
from h2o_runtime.caches.contiguous import Contiguous
from h2o_runtime.caches.evicting import Evicting
from h2o_runtime.caches.offload import Offload
from h2o_runtime.caches.paged import Paged
from h2o_runtime.components.registry import Registry

__all__ = [
    "CACHES",
    "Cache",
    "Contiguous",
    "Evicting",
    "KVStore",
    "LayerStore",
    "Offload",
    "Paged",
    "RetainedRows",
    "Rows",
]

CACHES: Registry[Cache] = Registry(
    Contiguous,
    Paged,
    Offload,
    Evicting,
    base=Cache,
    field="name",
    noun="cache",
    group="h2o_edge.caches",
)
