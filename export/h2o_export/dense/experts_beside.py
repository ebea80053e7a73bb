"""Experts beside a layer's MLP, each of both with norms of its own (Gemma 4, Google, 2026)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from h2o_export.architecture.config import ExpertsConfig, ModelConfig
from h2o_export.dense.experts import Expert, spoken
from h2o_export.layers.blocks import RMSNorm, UnitNorm


class ExpertsBeside(nn.Module):
    """What the MLP adds and the residual stream before it, [n, D] each → what both add, [n, D]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.experts is not None
        self.config, self.activation = config.experts, config.activation
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.post_feedforward_layernorm_1 = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm_2 = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm_2 = RMSNorm(hidden, eps)
        self.router = ScaledRouter(hidden, eps, config.experts)
        self.experts = nn.ModuleList(Expert(hidden, config.experts) for _ in range(config.experts.count))

    def forward(self, added: Tensor, residual: Tensor) -> Tensor:
        x = self.pre_feedforward_layernorm_2(residual)
        weights, chosen = self.router(residual)
        said = spoken(self.experts, x, weights, chosen, self.config, self.activation)
        both: Tensor = self.post_feedforward_layernorm_1(added) + self.post_feedforward_layernorm_2(said)
        return both


class ScaledRouter(nn.Module):
    """x [n, D] → weights float32 [n, k] of experts int64 [n, k]: shares of a softmax, times a number for each."""

    def __init__(self, hidden: int, eps: float, config: ExpertsConfig) -> None:
        super().__init__()
        self.chosen, self.root = config.chosen, hidden**-0.5
        self.norm = UnitNorm(eps)
        self.scale = nn.Parameter(torch.empty(hidden))
        self.proj = nn.Linear(hidden, config.count, bias=False)
        self.per_expert_scale = nn.Parameter(torch.empty(config.count))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scaled = self.norm(x.float()) * self.scale.float() * self.root
        shares = F.linear(scaled, self.proj.weight.float()).softmax(dim=-1)  # [n, E]
        best = shares.topk(self.chosen, dim=-1)
        weights = best.values / best.values.sum(dim=-1, keepdim=True)
        return weights * self.per_expert_scale.float()[best.indices], best.indices
