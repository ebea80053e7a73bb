"""Matrices as small integers with a scale a block: how checkpoints hand them over and formats take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class QuantizedTensor:
    """A matrix [N, K], N rows of results. Each row's elements share a scale in blocks of `block_size`; no offset.

    bits        4: values from -8 to 7; 8: from -128 to 127
    block_size  divides K
    q           int8 [N, K]
    scales      float32 [N, K / block_size]
    """

    bits: Literal[4, 8]
    block_size: int
    q: NDArray[np.int8]
    scales: NDArray[np.float32]

    def dequantize(self) -> NDArray[np.float32]:
        """The values that it stands for, float32 [N, K]."""
        rows, columns = self.q.shape
        blocks = self.q.reshape(rows, -1, self.block_size).astype(np.float32)
        return (blocks * self.scales[..., None]).reshape(rows, columns)
