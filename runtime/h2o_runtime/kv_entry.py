"""A layer's cache as a graph input: an h2o_kv of plugins/kernels/include/h2o/kv.h, with its addresses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.devices.tensor import address_of
from h2o_runtime.kv import KV

KV_ENTRY = np.dtype(
    [
        ("k", np.uint64),
        ("v", np.uint64),
        ("rows", np.int64),
        ("pages", np.uint64),
        ("page_rows", np.int32),
        ("dtype", np.int32),
        ("k_scales", np.uint64),
        ("v_scales", np.uint64),
        ("pool_rows", np.int64),
    ]
)
DTYPES = {"float32": 0, "float16": 1, "int8": 2}  # h2o_dtype of h2o/status.h


def _entry(kv: KV) -> tuple[int, ...]:
    stored, paged = len(kv.k), kv.pages is not None
    k_scales, v_scales = (0, 0) if kv.scales is None else map(address_of, kv.scales)
    rows = len(kv.pages) * kv.page_rows if kv.pages is not None else stored
    pages = address_of(kv.pages) if paged else 0
    dtype = DTYPES[np.dtype(kv.k.dtype).name]
    places = (address_of(kv.k), address_of(kv.v), rows, pages, kv.page_rows, dtype, k_scales, v_scales)
    return (*places, stored if paged else 0)


def kv_entries(caches: Sequence[KV]) -> NDArray[np.uint8]:
    """The KV_ENTRY of every layer's cache, uint8 [layers, bytes]. Valid as long as their tensors exist."""
    return np.array([_entry(kv) for kv in caches], KV_ENTRY).view(np.uint8).reshape(len(caches), -1)
