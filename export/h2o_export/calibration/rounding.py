"""Rounding a matrix so that its products lose little, not its weights.

What rounding one weight of a row loses, the row's other weights can make good where their inputs go together. So
the squared error of the products is what is made small: with E the error of the weights and H the second moments of
the inputs, that is the trace of E H Eᵀ. Three ways in turn:

- column after column, the error of each spread over those that are not rounded yet (GPTQ, Frantar et al., 2022);
- column after column again, each the best given all others (coordinate descent; QuantEase, Behdin et al., 2023);
- the scales of a row, the best given its integers: linear least squares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from h2o_export.formats.blocks import storable
from h2o_export.formats.quantized import QuantizedTensor

DAMPING = 0.01  # of the mean second moment, for inputs that the text has little of
SHARES = tuple(
    0.7 + 0.025 * step for step in range(17)
)  # of the scale that a block's largest weight asks for
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

    Scales have the precision of `dtype`. Raises CheckpointError for values that are beyond it.
    """
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


class _Rows:
    """Some rows of a matrix while they are rounded; each row is a problem by itself.

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
        """`spread` [K, K], the upper Cholesky factor of h's inverse: how later columns make an error good."""
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
        """Each column the best integers given all others, in one sweep."""
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
        """The scales that lose least with these integers. A block of zeros keeps its own."""
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
    """The scale of each row of `block` [n, K] with the least squared error, weighed by `importance` [K].

    Of 16 values one more is negative than positive: a scale's sign says which end reaches farther.
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
