"""The feed-forward half of a decoder layer."""

from __future__ import annotations

from torch import Tensor, nn

from h2o_export.architecture.config import ModelConfig
from h2o_export.layers.blocks import geglu, swiglu


class MLP(nn.Module):
    """Feed-forward with a gate: SwiGLU or GeGLU (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig, rows: int) -> None:
        super().__init__()
        bias = config.mlp_bias
        self.gated = {"silu": swiglu, "gelu": geglu}[config.activation]
        self.gate_proj = nn.Linear(config.hidden_size, rows, bias)
        self.up_proj = nn.Linear(config.hidden_size, rows, bias)
        self.down_proj = nn.Linear(rows, config.hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.gated(self.gate_proj(x), self.up_proj(x)))
        return out
