"""The common result of all packing methods: integers whose columns share a scale and a zero by group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_export.tensors import QuantizedTensor
from h2o_runtime.errors import CheckpointError

Integers = NDArray[np.int16]


@dataclass(frozen=True)
class Grouped:
    """A matrix [N, K] as (q - zeros) * scales, each column with the scale and zero of its group.

    q       int16 [N, K]
    zeros   int16 [N, G]
    scales  float32 [N, G]
    groups  [K], the group of each column; None where groups are runs of K / G columns
    """

    q: Integers
    zeros: Integers
    scales: NDArray[np.float32]
    groups: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Raises CheckpointError if the tensors do not match each other."""
        (rows, columns), groups = self.q.shape, self.scales.shape[-1]
        fits = self.scales.shape == self.zeros.shape == (rows, groups) and groups > 0
        if self.groups is None:
            fits = fits and columns % groups == 0
        else:
            fits = fits and self.groups.shape == (columns,)
            fits = fits and bool(np.all((self.groups >= 0) & (self.groups < groups)))
        if not fits:
            raise CheckpointError(
                f"integers {list(self.q.shape)}, scales {list(self.scales.shape)} and zeros "
                f"{list(self.zeros.shape)} do not match; download the checkpoint again"
            )

    def dequantize(self) -> NDArray[np.float32]:
        """Exact for 16-bit scales: a float32 holds the product of such a scale and an 8-bit integer."""
        if self.groups is not None:
            shifted = (self.q - self.zeros[:, self.groups]).astype(np.float32)
            shifted *= self.scales[:, self.groups]
            return shifted
        runs = self._runs().astype(np.float32)
        runs *= self.scales[..., None]
        return runs.reshape(self.q.shape)

    def blocks(self) -> QuantizedTensor | None:
        """The same values in blocks; None if integers have more than 8 bits, or groups are scattered.

        Uses 4 bits if they suffice, with offsets unless all zeros are in the middle.
        """
        if self.groups is not None:
            return None
        runs = self._runs()
        low, high = int(runs.min()), int(runs.max())
        middle = 8 if int(self.q.min()) >= 0 else 0
        if (low < -8 or high > 7) and int(self.q.min()) >= middle - 8 and int(self.q.max()) < middle + 8:
            q = (self.q - middle).astype(np.int8)
            offsets = (middle - self.zeros).astype(np.float32) * self.scales
            return QuantizedTensor(4, runs.shape[-1], q, self.scales, offsets)
        for bits in (4, 8):
            half = 1 << (bits - 1)
            if -half <= low and high < half:
                q = runs.astype(np.int8).reshape(self.q.shape)
                return QuantizedTensor(bits, runs.shape[-1], q, self.scales)
        return None

    def _runs(self) -> Integers:
        """Integers minus their zeros, [N, G, K / G]."""
        rows, groups = self.scales.shape
        runs: Integers = self.q.reshape(rows, groups, -1) - self.zeros[..., None]
        return runs


def unpack(words: NDArray[Any], bits: int) -> Integers:
    """Unpack `bits`-bit integers [R, C * 32 / bits], lowest bits first, from 32-bit words [R, C]."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    fields = (words.astype(np.int32).view(np.uint32)[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return fields.astype(np.int16).reshape(len(words), -1)


def runs_or_groups(index: NDArray[Any], groups: int) -> NDArray[np.int64] | None:
    """The group of each column, [K]; None if the groups are equal runs, so that the index is not needed."""
    columns = index.size
    if columns % groups == 0 and np.array_equal(index, np.arange(columns) // (columns // groups)):
        return None
    return index.astype(np.int64)
