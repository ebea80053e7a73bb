"""Building blocks of all layer kinds: nodes of the traced graph whose bodies are in `operators.dense`.

n tokens, H heads, d head size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from h2o_runtime.operators import DOMAIN, VERSION


def embedding(rows: int, size: int) -> nn.Embedding:
    """A table that is filled later: torch would draw its numbers, and load its compiler for that."""
    table: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, size))
    return table


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, its statistics in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return _node("RMSNorm", x, self.weight, epsilon=self.eps)


class UnitNorm(nn.Module):
    """The same without weights."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        rows = x.float()
        return (rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up, of one shape."""
    return _node("SwiGLU", gate, up)


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) · up, of one shape, with the tanh approximation."""
    return _node("GeGLU", gate, up)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on halves. x [n, H, d]; cos, sin float32 [n, d/2]."""
    return _node("Rotation", x, cos, sin)


def of_length(cos: Tensor, sin: Tensor, length: float) -> tuple[Tensor, Tensor]:
    """The same angles with cos² + sin² = length², float32 [n, d/2]; all pairs of a row are of one length before."""
    by = length * torch.rsqrt(cos[:, :1] ** 2 + sin[:, :1] ** 2)
    return cos * by, sin * by


def rotate_first(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on the first elements of a head, twice as many as there are angles; x [n, H, d]."""
    size = 2 * cos.shape[1]
    if size == x.shape[2]:
        return rotate(x, cos, sin)
    return torch.cat((rotate(x[..., :size], cos, sin), x[..., size:]), dim=-1)


def convolved(before: Tensor, x: Tensor, kernel: nn.Conv1d) -> Tensor:
    """Causal convolution of each column alone: x [n, C], K - 1 rows before, the kernel's weight [C, 1, K] and its
    bias, if it has one → [n, C].
    """
    n, seen, weight = x.shape[0], torch.cat((before, x)), kernel.weight
    summed = seen[:n] * weight[:, 0, 0]
    for i in range(1, weight.shape[2]):
        summed = summed + seen[i : i + n] * weight[:, 0, i]
    return summed if kernel.bias is None else summed + kernel.bias


def _node(operator: str, x: Tensor, *inputs: Tensor, **attributes: float) -> Tensor:
    """A node of domain h2o, whose output is as `x`."""
    result: Tensor = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{operator}", (x, *inputs), {**attributes}, dtype=x.dtype, shape=x.shape, version=VERSION
    )
    return result.to(x.device)  # the tracer puts it elsewhere
