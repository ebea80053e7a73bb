"""The feed-forward half of a decoder layer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from h2o_export.config import ModelConfig


class MLP(nn.Module):
    """SwiGLU feed-forward (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        bias = config.mlp_bias
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias)

    @staticmethod
    def checkpoint_name(parameter: str) -> str:
        """The name of a parameter in a layer's tensors."""
        return f"mlp.{parameter}"

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out
