"""GGUF types of small numbers with a scale, and perhaps an offset, for each block: integers without rounding.

The layouts are those of ggml's `block_q8_0`, `block_q5_0`, `block_q4_0`, `block_q4_1`, `block_q4_K`,
`block_mxfp4` and `block_iq4_nl`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from h2o_export.tensors import Integers, QuantizedTensor

BLOCK = 32
# Twice the values of E2M1 (Open Compute Project, "Microscaling Formats Specification", 2023), by its four bits.
_FOUR_BITS = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int8)
# Of ggml's IQ4_NL, by the four bits.
_IQ4_NL = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8)
_BIAS = 127  # of a block's exponent


def _q8_0(data: NDArray[np.uint8], rows: int, columns: int) -> QuantizedTensor:
    blocks = data.reshape(rows, columns // BLOCK, 2 + BLOCK)
    return QuantizedTensor(8, BLOCK, blocks[..., 2:].view(np.int8).reshape(rows, columns), _scales(blocks))


def _q5_0(data: NDArray[np.uint8], rows: int, columns: int) -> QuantizedTensor:
    """Like Q4_0, with the fifth bits of all elements in one 32-bit word; stored here as 8-bit integers."""
    blocks = data.reshape(rows, columns // BLOCK, 2 + 4 + BLOCK // 2)
    fifth = np.unpackbits(np.ascontiguousarray(blocks[..., 2:6]), axis=-1, bitorder="little")
    packed = blocks[..., 6:]
    q = (np.concatenate((packed & 0x0F, packed >> 4), axis=-1) | fifth << 4).view(np.int8) - np.int8(16)
    return QuantizedTensor(8, BLOCK, q.reshape(rows, columns), _scales(blocks))


def _q4_0(data: NDArray[np.uint8], rows: int, columns: int) -> QuantizedTensor:
    """A byte holds element i of a block in its low half and element i + 16 in its high half, each plus 8."""
    blocks = data.reshape(rows, columns // BLOCK, 2 + BLOCK // 2)
    packed = blocks[..., 2:]
    q = np.concatenate((packed & 0x0F, packed >> 4), axis=-1).view(np.int8) - np.int8(8)
    return QuantizedTensor(4, BLOCK, q.reshape(rows, columns), _scales(blocks))


def _q4_1(data: NDArray[np.uint8], rows: int, columns: int) -> QuantizedTensor:
    """A float16 scale, a float16 offset (the value of 0), and integers from 0 to 15 as in Q4_0."""
    blocks = data.reshape(rows, columns // BLOCK, 4 + BLOCK // 2)
    packed, scales = blocks[..., 4:], _scales(blocks)
    q = np.concatenate((packed & 0x0F, packed >> 4), axis=-1).view(np.int8) - np.int8(8)
    return QuantizedTensor(4, BLOCK, q.reshape(rows, columns), scales, _scales(blocks[..., 2:]) + 8 * scales)


def _q4_k(data: NDArray[np.uint8], rows: int, columns: int) -> QuantizedTensor:
    """Eight blocks share two float16 values; the blocks' scales and minima are 6-bit multiples of them."""
    from gguf.quants import Q4_K

    shared = data.reshape(-1, 16 + 8 * BLOCK // 2)
    steps, below = Q4_K.get_scale_min(np.ascontiguousarray(shared[:, 4:16]))
    scales = (_scales(shared)[:, None] * steps).astype(np.float32)
    least = (_scales(shared[:, 2:])[:, None] * below).astype(np.float32)
    packed = shared[:, 16:].reshape(-1, 4, BLOCK)  # a byte has elements of two blocks
    q = np.stack((packed & 0x0F, packed >> 4), axis=2).view(np.int8) - np.int8(8)
    return QuantizedTensor(
        4, BLOCK, q.reshape(rows, columns), scales.reshape(rows, -1), (8 * scales - least).reshape(rows, -1)
    )


def _mxfp4(data: NDArray[np.uint8], rows: int, columns: int) -> QuantizedTensor:
    """An exponent, and four bits for each element in the order of Q4_0; stored here as 8-bit integers."""
    blocks = data.reshape(rows, columns // BLOCK, 1 + BLOCK // 2)
    packed = blocks[..., 1:]
    q = _FOUR_BITS[np.concatenate((packed & 0x0F, packed >> 4), axis=-1)]
    halves = np.ldexp(np.float32(0.5), blocks[..., 0].astype(np.int32) - _BIAS)
    return QuantizedTensor(8, BLOCK, q.reshape(rows, columns), halves)


def _scales(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    scales: NDArray[np.float32] = (
        np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
    )
    return scales


def _iq4_nl(data: NDArray[np.uint8], rows: int, columns: int) -> QuantizedTensor:
    """Like Q4_0, with four bits for one of 16 values; stored here as 8-bit integers."""
    blocks = data.reshape(rows, columns // BLOCK, 2 + BLOCK // 2)
    packed = blocks[..., 2:]
    q = _IQ4_NL[np.concatenate((packed & 0x0F, packed >> 4), axis=-1)]
    return QuantizedTensor(8, BLOCK, q.reshape(rows, columns), _scales(blocks))


Unpack = Callable[[NDArray[np.uint8], int, int], "QuantizedTensor"]
BLOCKS: Mapping[GGMLQuantizationType, Unpack] = MappingProxyType(
    {
        GGMLQuantizationType.Q8_0: _q8_0,
        GGMLQuantizationType.Q5_0: _q5_0,
        GGMLQuantizationType.Q4_0: _q4_0,
        GGMLQuantizationType.Q4_1: _q4_1,
        GGMLQuantizationType.Q4_K: _q4_k,
        GGMLQuantizationType.MXFP4: _mxfp4,
        GGMLQuantizationType.IQ4_NL: _iq4_nl,
    }
)
FLOATS = {GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16}
_FOUR = Integers(4, offsets=False, block_size=BLOCK)
_OF_FOUR_BITS = {
    GGMLQuantizationType.Q4_0: _FOUR,
    GGMLQuantizationType.Q4_1: replace(_FOUR, offsets=True),
    GGMLQuantizationType.Q4_K: replace(_FOUR, offsets=True),
}


def integers_of(kind: GGMLQuantizationType) -> Integers | None:
    """What a matrix of this type holds; None: floats."""
    if kind in FLOATS:
        return None
    return _OF_FOUR_BITS.get(kind) or Integers(8, offsets=False, block_size=BLOCK if kind in BLOCKS else None)
