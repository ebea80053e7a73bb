"""Rounds a matrix so that the error of its products is small, not that of its weights.

If inputs are correlated, the row's other weights can compensate for the rounding error of one weight. So the
squared error of the products is minimized: with E the error of the weights and H the second moments of the
inputs, it is the trace of E H Eᵀ. First column after column, the error of each spread over those that are not
rounded yet (GPTQ, Frantar et al., 2022; in the form of LDLQ, Chee et al., 2023). Then a sweep, in which each
block's scales, and then each of its columns, become the best given all others (coordinate descent; QuantEase,
Behdin et al., 2023). A second sweep would lower the error by 2 %.

Moments of a few thousand tokens are those of the text more than those of the inputs: without much damping, the
products of another text are worse than with weights rounded to nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from h2o_export.formats.blocks import in_blocks, padded, storable
from h2o_export.tensors import QuantizedTensor

DAMPING = 0.5  # of the mean second moment: least error on text that the moments are not of
# Inputs whose correlation counts, at most: time and memory grow with it. All 4,864 of an MLP at once would have
# errors 12 to 17 % smaller than windows of 1,024.
WINDOW = 1536
SHARES = tuple(0.7 + 0.05 * step for step in range(9))  # of the scale that fits a block's largest weight
SPAN = 256  # columns of one large product
ROWS = 4096  # of a matrix at a time


@dataclass(frozen=True)
class Moments:
    """Second moments of a window of inputs, and their factors: H = U D Uᵀ.

    h           float32 [K, K], damped
    carried     U, upper triangular with ones: what each later column adds of an error
    importance  the diagonal of D, [K]
    """

    h: Tensor
    carried: Tensor
    importance: Tensor

    @classmethod
    def of(cls, inputs: Tensor) -> Moments:
        """`inputs` float32 [n, K]."""
        columns = inputs.shape[1]
        h = torch.empty(columns, columns)
        for start in range(0, columns, SPAN):  # the upper half: h is symmetric
            h[start : start + SPAN, start:] = inputs[:, start : start + SPAN].T @ inputs[:, start:]
        h = (h.triu() + h.triu(1).T) / max(len(inputs), 1)
        h.diagonal().add_(DAMPING * h.diagonal().mean().clamp(min=1e-10))
        factor = torch.linalg.cholesky(h.flip(0, 1)).flip(0, 1)
        size = factor.diagonal()
        return cls(h, factor / size, size.square())


def windows(inputs: Tensor, block_size: int) -> list[Moments]:
    """Of inputs float32 [n, K], filled up to whole blocks; windows are about equally wide."""
    columns = padded(inputs.shape[1], block_size)
    inputs = nn.functional.pad(inputs, (0, columns - inputs.shape[1]))
    blocks = columns // block_size
    count = -(-columns // WINDOW)
    ends = [blocks * index // count * block_size for index in range(count + 1)]
    return [Moments.of(inputs[:, start:end]) for start, end in pairwise(ends)]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads would spend most of their time waiting for each other: operations on a column are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_one_thread()
def compensate(
    weights: Tensor,
    moments: list[Moments],
    bits: Literal[4, 8],
    block_size: int,
    dtype: Literal["float32", "float16"],
    name: str,
) -> QuantizedTensor:
    """Round float32 weights [N, K] for inputs with these moments, as `windows` gives them.

    Scales have the precision of `dtype`. Raises CheckpointError for values out of its range.
    """
    weights = in_blocks(weights, block_size).reshape(len(weights), -1)
    rows, columns = weights.shape
    q = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, columns // block_size), np.float32)
    end = 0
    for window in moments:
        start, end = end, end + len(window.h)
        blocks = slice(start // block_size, end // block_size)
        for first in range(0, rows, ROWS):
            cut = slice(first, first + ROWS)
            rounding = _Rows(weights[cut, start:end], 1 << (bits - 1), block_size)
            rounding.spread_errors(window)
            rounding.descend(window.h, lambda scale: storable(scale, dtype, name))
            q[cut, start:end] = rounding.q.T.to(torch.int8).numpy()
            scales[cut, blocks] = rounding.scales.T.numpy()
    return QuantizedTensor(bits, block_size, q, scales)


class _Rows:
    """Some rows of a matrix while they are rounded; each row is an independent problem.

    Transposed, so that a column is contiguous: weights, integers q and errors (weights less their represented
    values) float32 [K, n]; integers from -limit to limit - 1; scales [K / block, n]
    """

    def __init__(self, weights: Tensor, limit: int, block: int) -> None:
        self.weights = weights.T.contiguous()
        self.limit = limit
        self.block = block
        self.q = torch.empty_like(self.weights)
        self.errors = torch.empty_like(self.weights)
        self.scales = torch.empty(len(self.weights) // block, self.weights.shape[1])

    def spread_errors(self, moments: Moments) -> None:
        carried = moments.carried
        for span, blocks in self._spans():
            wanted = self.weights[span] + carried[: span.start, span].T @ self.errors[: span.start]
            for index, cut, own in blocks:
                block = (
                    wanted[own] + carried[span.start : cut.start, cut].T @ self.errors[span.start : cut.start]
                )
                scale = best_scale(block, moments.importance[cut], self.limit)
                errors = self._round(cut, block / scale, self.weights[cut] / scale, carried[cut, cut])
                self.scales[index] = scale
                self.errors[cut] = errors * scale

    def descend(self, h: Tensor, stored: Callable[[Tensor], Tensor]) -> None:
        """One sweep; `stored` gives scales the precision in which they are kept."""
        for span, blocks in self._spans():
            slope = h[span].mm(
                self.errors
            )  # minus half the gradient, of the errors before this span's changes
            moved = torch.zeros_like(slope)
            for index, cut, own in blocks:
                slope[own] += h[span.start : cut.start, cut].T @ moved[: own.start]
                before = self.errors[cut].clone()
                self._descend_block(index, cut, slope[own], h[cut, cut], stored)
                moved[own] = self.errors[cut] - before

    def _descend_block(
        self, index: int, cut: slice, slope: Tensor, h: Tensor, stored: Callable[[Tensor], Tensor]
    ) -> None:
        """`slope` [block, n] of this block's columns; a block of zeros keeps its scale."""
        old = self.q[cut].clone()
        steps = h @ old
        curvature = (old * steps).sum(0)
        change = torch.where(curvature > 0, (old * slope).sum(0) / curvature, torch.zeros(()))
        before = self.scales[index].clone()
        scale = stored(torch.where(before + change == 0, before, before + change))
        slope = slope - steps * (scale - before)
        size = h.diagonal()[:, None]
        moved = self._round(cut, old + slope / (size * scale), old, h / size.T)
        self.scales[index] = scale
        self.errors[cut] += moved * scale - old * (scale - before)

    def _round(self, cut: slice, wanted: Tensor, exact: Tensor, carried: Tensor) -> Tensor:
        """Round `wanted` [block, n] column after column, in units of the scale. Returns `exact` less the integers,
        of which each column adds a share to what is wanted of the later ones.
        """
        left = torch.empty_like(exact)
        for j, q in enumerate(self.q[cut]):
            value = torch.addmv(wanted[j], left[:j].T, carried[:j, j]) if j else wanted[0]
            torch.clamp(value.round(), -self.limit, self.limit - 1, out=q)
            torch.sub(exact[j], q, out=left[j])
        return left

    def _spans(self) -> Iterator[tuple[slice, list[tuple[int, slice, slice]]]]:
        """Columns of a large product, and its blocks: index, columns, and columns within the span."""
        columns = len(self.weights)
        for start in range(0, columns, SPAN):
            end = min(start + SPAN, columns)
            yield (
                slice(start, end),
                [
                    (at // self.block, slice(at, at + self.block), slice(at - start, at - start + self.block))
                    for at in range(start, end, self.block)
                ],
            )


def best_scale(block: Tensor, importance: Tensor, limit: int) -> Tensor:
    """The scale of each column of `block` [K, n] with the least squared error, weighted by `importance` [K].

    16 values have one more negative than positive: the sign of a scale says which end reaches farther.
    """
    root = importance.sqrt()[:, None]
    weighted = block * root
    best, least = torch.ones(block.shape[1]), torch.full((block.shape[1],), torch.inf)
    values = torch.empty_like(block)
    for end in (block.amin(dim=0) / -limit, block.amax(dim=0) / -limit):
        for share in SHARES:
            scale = torch.where(end == 0, torch.ones_like(end), share * end)
            torch.div(block, scale, out=values)
            values.round_().clamp_(-limit, limit - 1).mul_(scale).mul_(root).sub_(weighted)
            error = values.square_().sum(dim=0)
            best = torch.where(error < least, scale, best)
            least = torch.minimum(error, least)
    return best
