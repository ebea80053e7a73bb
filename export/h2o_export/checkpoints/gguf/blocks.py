"""The types of GGUF that are small integers with one scale a block: read as they are.

The layouts are those of ggml's `block_q8_0` and `block_q4_0`: a float16 scale, then the block's integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

if TYPE_CHECKING:
    from h2o_export.formats.quantized import QuantizedTensor

BLOCK = 32


def _q8_0(data: NDArray[np.uint8], rows: int, columns: int) -> QuantizedTensor:
    from h2o_export.formats.quantized import QuantizedTensor

    blocks = data.reshape(rows, columns // BLOCK, 2 + BLOCK)
    return QuantizedTensor(8, BLOCK, blocks[..., 2:].view(np.int8).reshape(rows, columns), _scales(blocks))


def _q4_0(data: NDArray[np.uint8], rows: int, columns: int) -> QuantizedTensor:
    """A byte has element i of the block below and element i + 16 above, each 8 more than its value."""
    from h2o_export.formats.quantized import QuantizedTensor

    blocks = data.reshape(rows, columns // BLOCK, 2 + BLOCK // 2)
    packed = blocks[..., 2:]
    q = np.concatenate((packed & 0x0F, packed >> 4), axis=-1).view(np.int8) - np.int8(8)
    return QuantizedTensor(4, BLOCK, q.reshape(rows, columns), _scales(blocks))


def _scales(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    scales: NDArray[np.float32] = (
        np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
    )
    return scales


Unpack = Callable[[NDArray[np.uint8], int, int], "QuantizedTensor"]
BLOCKS: Mapping[GGMLQuantizationType, Unpack] = MappingProxyType(
    {GGMLQuantizationType.Q8_0: _q8_0, GGMLQuantizationType.Q4_0: _q4_0}
)
