"""What checkpoints give and weight formats take: floats within range, and matrices as blocks of small integers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_runtime.errors import CheckpointError


@dataclass(frozen=True)
class Integers:
    """What a file holds of a matrix: integers of 4 bits, or of more, which 8 hold.

    block_size  None: no block can be taken unchanged
    """

    bits: Literal[4, 8]
    offsets: bool
    block_size: int | None


@dataclass(frozen=True)
class QuantizedTensor:
    """A matrix [N, K], N rows of results: q · scale in each block of a row, and the block's offset if it has one.

    bits        4: values from -8 to 7; 8: from -128 to 127
    block_size  divides K, which a format fills up to whole blocks (`blocks.padded`)
    q           int8 [N, K]
    scales      float32 [N, K / block_size]
    offsets     float32, as scales; None: there are none
    """

    bits: Literal[4, 8]
    block_size: int
    q: NDArray[np.int8]
    scales: NDArray[np.float32]
    offsets: NDArray[np.float32] | None = None

    def dequantize(self) -> NDArray[np.float32]:
        """The represented values, float32 [N, K]."""
        rows, columns = self.q.shape
        values = self.q.reshape(rows, -1, self.block_size).astype(np.float32)
        values *= self.scales[..., None]
        if self.offsets is not None:
            values += self.offsets[..., None]
        return values.reshape(rows, columns)

    def in_blocks_of(self, size: int) -> QuantizedTensor:
        """The same with blocks of `size`, which divides the current block size."""
        times = self.block_size // size
        offsets = None if self.offsets is None else np.repeat(self.offsets, times, axis=1)
        return replace(self, block_size=size, scales=np.repeat(self.scales, times, axis=1), offsets=offsets)

    def in_floats(self, dtype: str, name: str) -> QuantizedTensor:
        """With scales and offsets rounded to `dtype`. Raises CheckpointError if they are out of its range."""

        def rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
            stored: NDArray[np.float32] = (
                to_dtype(torch.from_numpy(values), getattr(torch, dtype), name).float().numpy()
            )
            return stored

        offsets = None if self.offsets is None else rounded(self.offsets)
        return replace(self, scales=rounded(self.scales), offsets=offsets)

    def without_offsets(self) -> QuantizedTensor | None:
        """The same values as integers of at most 8 bits; None if an offset is not a whole number of steps."""
        if self.offsets is None:
            return self
        steps = np.rint(self.offsets / np.where(self.scales == 0, 1, self.scales))
        if not np.array_equal(steps * self.scales, self.offsets):
            return None
        moved = self.q.reshape(*steps.shape, self.block_size) + steps[..., None]
        if np.abs(moved).max(initial=0) > 127:
            return None
        return QuantizedTensor(8, self.block_size, moved.astype(np.int8).reshape(self.q.shape), self.scales)


def to_dtype(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Convert weights. NaN, or a value outside float16's range, raises an error."""
    converted = tensor.to(dtype)
    if not bool(torch.isfinite(converted).all()):
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"tensor '{name}' holds NaN or infinity where numbers should be: the checkpoint is damaged, or its "
                "training has failed; download it again"
            )
        raise CheckpointError(f"tensor '{name}' has values beyond float16's range; use `dtype=float32`")
    return converted
