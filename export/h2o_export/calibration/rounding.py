"""Rounds a matrix so that the error of its products is small, not that of its weights.

If inputs are correlated, the row's other weights can compensate for the rounding error of one weight. So the
squared error of the products is minimized: with E the error of the weights and H the second moments of the
inputs, it is the trace of E H Eᵀ. Three steps:

- column after column, the error of each spread over those that are not rounded yet (GPTQ, Frantar et al., 2022);
- column after column again, each the best given all others (coordinate descent; QuantEase, Behdin et al., 2023);
- the scales of a row, the best given its integers: linear least squares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from h2o_export.formats.blocks import in_blocks, padded, storable
from h2o_export.tensors import QuantizedTensor

DAMPING = 0.01  # of the mean second moment, for inputs that are rare in the text
SHARES = tuple(0.7 + 0.025 * step for step in range(17))  # of the scale that fits a block's largest weight
AT_ONCE = 1 << 23  # elements of the matrix


def compensate(
    weights: Tensor,
    moments: Tensor,
    bits: Literal[4, 8],
    block_size: int,
    dtype: Literal["float32", "float16"],
    name: str,
) -> QuantizedTensor:
    """Round float32 weights [N, K] for inputs with the second moments `moments`, float32 [K, K].

    Scales have the precision of `dtype`. Raises CheckpointError for values out of its range.
    """
    weights, moments = _in_whole_blocks(weights, moments, block_size)
    h = moments + DAMPING * moments.diagonal().mean().clamp(min=1e-10) * torch.eye(len(moments))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(h))
    spread = torch.linalg.cholesky(inverse, upper=True)
    rows, columns = weights.shape
    blocks = columns // block_size
    q = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, blocks), np.float32)
    step = max(1, AT_ONCE // max(columns, blocks * blocks))
    for start in range(0, rows, step):
        cut = slice(start, start + step)
        rounding = _Rows(weights[cut], h, 1 << (bits - 1), block_size)
        rounding.spread_errors(spread)
        rounding.descend()
        rounding.fit_scales()
        rounding.scales = storable(rounding.scales, dtype, name)
        rounding.descend()
        q[cut], scales[cut] = rounding.q.to(torch.int8).numpy(), rounding.scales.numpy()
    return QuantizedTensor(bits, block_size, q, scales)


def _in_whole_blocks(weights: Tensor, moments: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Both for rows of whole blocks; inputs that no activation has are zero."""
    missing = padded(weights.shape[1], block_size) - weights.shape[1]
    whole = in_blocks(weights, block_size).reshape(len(weights), -1)
    return whole, nn.functional.pad(moments, (0, missing, 0, missing))


class _Rows:
    """Some rows of a matrix while they are rounded; each row is an independent problem.

    weights float32 [n, K], h float32 [K, K]; q [n, K], integers from -limit to limit - 1 in float32; scales
    float32 [n, K / block]
    """

    def __init__(self, weights: Tensor, h: Tensor, limit: int, block: int) -> None:
        self.weights = weights
        self.h = h
        self.limit = limit
        self.block = block
        self.q = torch.zeros_like(weights)
        self.scales = torch.ones(len(weights), weights.shape[1] // block)

    def spread_errors(self, spread: Tensor) -> None:
        """`spread` [K, K], the upper Cholesky factor of h's inverse: how later columns compensate for an
        error.
        """
        left = self.weights.clone()
        for index, cut in self._blocks():
            block, factor = left[:, cut], spread[cut, cut]
            importance = factor.diagonal().square().reciprocal()
            scale = best_scale(block, importance, self.limit)
            self.scales[:, index] = scale
            errors = torch.empty_like(block)
            for j in range(self.block):
                q = self._nearest(block[:, j] / scale)
                errors[:, j] = (block[:, j] - q * scale) / factor[j, j]
                block[:, j:] -= errors[:, j, None] * factor[j, j:]
                self.q[:, cut.start + j] = q
            left[:, cut.stop :] -= errors @ spread[cut, cut.stop :]

    def descend(self) -> None:
        """The best integers of each column given all others, in one sweep."""
        slope = (self._values() - self.weights) @ self.h  # half the gradient
        for index, cut in self._blocks():
            scale, h, near = self.scales[:, index], self.h[cut, cut], slope[:, cut].clone()
            moved = torch.empty_like(near)
            for j in range(self.block):
                old = self.q[:, cut.start + j].clone()
                new = self._nearest(old - near[:, j] / (h[j, j] * scale))
                moved[:, j] = (new - old) * scale
                near += moved[:, j, None] * h[j]
                self.q[:, cut.start + j] = new
            slope += moved @ self.h[cut]

    def fit_scales(self) -> None:
        """The best scales for these integers. A block of zeros keeps its scale."""
        n, blocks = self.scales.shape
        wanted = (self.q * (self.weights @ self.h)).view(n, blocks, self.block).sum(2)
        system = torch.empty(n, blocks, blocks)
        for index, cut in self._blocks():
            products = (self.q[:, cut] @ self.h[cut]) * self.q
            system[:, index] = products.view(n, blocks, self.block).sum(2)
        diagonal = system.diagonal(dim1=1, dim2=2)
        empty = diagonal == 0
        diagonal += 1e-6 * diagonal.mean(dim=1, keepdim=True) + empty
        self.scales = torch.where(empty, self.scales, torch.linalg.solve(system, wanted))

    def _values(self) -> Tensor:
        return self.q * self.scales.repeat_interleave(self.block, dim=1)

    def _nearest(self, values: Tensor) -> Tensor:
        return values.round().clamp(-self.limit, self.limit - 1)

    def _blocks(self) -> Iterator[tuple[int, slice]]:
        for index in range(self.scales.shape[1]):
            yield index, slice(index * self.block, (index + 1) * self.block)


def best_scale(block: Tensor, importance: Tensor, limit: int) -> Tensor:
    """The scale of each row of `block` [n, K] with the least squared error, weighted by `importance` [K].

    16 values have one more negative than positive: the sign of a scale says which end reaches farther.
    """
    lowest, highest = block.amin(dim=1), block.amax(dim=1)
    best, least = torch.ones(len(block)), torch.full((len(block),), torch.inf)
    for end in (lowest / -limit, highest / -limit):
        for share in SHARES:
            scale = torch.where(end == 0, torch.ones_like(end), share * end)
            q = (block / scale[:, None]).round().clamp(-limit, limit - 1)
            error = ((q * scale[:, None] - block).square() * importance).sum(dim=1)
            best = torch.where(error < least, scale, best)
            least = torch.minimum(error, least)
    return best
