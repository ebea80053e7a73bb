"""Packs weights for native products: plugins/kernels/include/h2o/products.h has the layout."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from h2o_plugins import load_cpu_kernels

PANEL = 16  # columns


def pack(
    q: NDArray[np.int8], bits: Literal[4, 8], block_size: int, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """int8 [N, K], with contiguous rows or columns → uint8 [N / 16, rounded up, K · 16 · bits / 8].

    out: the result's memory, [bytes].
    """
    if out is None:
        out = np.empty(packed_bytes(q, bits), np.uint8)
    load_cpu_kernels().pack_integers(q, bits, block_size, out)
    return out.reshape(-(-len(q) // PANEL), -1)


def packed_bytes(q: NDArray[np.int8], bits: int) -> int:
    """Bytes of q [N, K] when it is packed."""
    inputs: int = q.shape[1]
    return -(-len(q) // PANEL) * PANEL * inputs * bits // 8


def pack_scales(scales: NDArray[Any]) -> NDArray[np.float32]:
    """[N, K / block] → float32 [N / 16, rounded up, K / block, 16]. Offsets have the same layout."""
    scales = _whole_panels(scales)
    panels = scales.reshape(-1, PANEL, scales.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(panels, dtype=np.float32)


def pack_floats(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [N, K] → [N / 16, rounded up, K, 16]."""
    matrix = _whole_panels(matrix)
    return np.ascontiguousarray(matrix.reshape(-1, PANEL, matrix.shape[1]).transpose(0, 2, 1))


def pack_bfloat16(matrix: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 [N, K] → bfloat16 [N / 16, rounded up, K / 2, 16, 2], to the nearest, ties to even."""
    bits = _whole_panels(np.ascontiguousarray(matrix)).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1) >> 16).astype(np.uint16)
    pairs = rounded.view(np.uint32).reshape(-1, PANEL, matrix.shape[1] // 2).transpose(0, 2, 1)
    return np.ascontiguousarray(pairs).view(np.uint16).reshape(len(pairs), -1, PANEL, 2)


def _whole_panels(array: NDArray[Any]) -> NDArray[Any]:
    return np.pad(array, ((0, -len(array) % PANEL), (0, 0))) if len(array) % PANEL else array
