"""Packs weights for native products: plugins/kernels/include/h2o/products.h has the layout."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

PANEL = 16  # columns


def pack(q: NDArray[np.int8], bits: Literal[4, 8], block_size: int) -> NDArray[np.uint8]:
    """int8 [N, K] → uint8 [N / 16, rounded up, K · 16 · bits / 8]."""
    q = _whole_panels(q)
    panels, k = len(q) // PANEL, q.shape[1]
    if bits == 8:
        unsigned = np.bitwise_xor(q.view(np.uint8), np.uint8(0x80))
    else:
        halves = np.add(q, np.int8(8)).view(np.uint8).reshape(len(q), k // block_size, 2, block_size // 2)
        unsigned = np.bitwise_or(halves[:, :, 0], np.left_shift(halves[:, :, 1], np.uint8(4)))
    steps = unsigned.reshape(panels, PANEL, -1).view(np.uint32)  # four weights each
    return np.ascontiguousarray(steps.transpose(0, 2, 1)).view(np.uint8).reshape(panels, -1)


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
