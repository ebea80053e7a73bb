"""Modules that layers of every kind are made of. n tokens, H heads, d head size."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Root-mean-square norm, its statistics in float32 (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on halves (Su et al., 2021; the layout of Hugging Face checkpoints). x [n, H, d]; cos, sin [n, d/2]."""
    half = x.shape[-1] // 2
    wide = x.float()
    a, b = wide[..., :half], wide[..., half:]  # [n, H, d/2]
    c, s = cos.unsqueeze(1), sin.unsqueeze(1)  # [n, 1, d/2]
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1).to(x.dtype)
