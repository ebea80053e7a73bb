"""The feed-forward half of a decoder layer."""

from __future__ import annotations

from torch import Tensor, nn

from h2o_export.architecture.config import ModelConfig
from h2o_export.layers.blocks import geglu, swiglu


def feed_forward(config: ModelConfig, rows: int) -> nn.Module:
    return UngatedMLP(config, rows) if config.activation == "relu2" else MLP(config, rows)


class UngatedMLP(nn.Module):
    """Feed-forward with the square of ReLU (So et al., 2021)."""

    def __init__(self, config: ModelConfig, rows: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, rows, config.mlp_bias)
        self.down_proj = nn.Linear(rows, config.hidden_size, config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up_proj(x).relu()
        out: Tensor = self.down_proj(inner * inner)
        return out


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
