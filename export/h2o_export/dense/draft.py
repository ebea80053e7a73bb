"""The layer that drafts a token from the model's own hidden states (DeepSeek-AI, 2024, "DeepSeek-V3", section 2.2):
one more decoder layer, beside the model's own.

For a token it reads that token's embedding, and what the model's head read of the token before, after the final
norm. Its own output after a norm goes into the model's head, and stands for the latter where a further token is
drafted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from h2o_export.dense.modules import Angles, norm
from h2o_export.layers.blocks import RMSNorm, embedding
from h2o_export.plan import Plan


class DraftFirst(nn.Module):
    """tokens, positions int64 [n], hidden [n, D] of the tokens before → residual [n, D], and what the layer's kind
    gives to attention and cache."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        config, layer = plan.config, plan.layers[0]
        self.embed_tokens = embedding(config.vocab_size, config.hidden_size)
        self.token_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.merging = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.rotations = nn.ModuleList((Angles(plan, 0),))
        self.before_attention = norm(config, config.norms.before_attention)
        self.qkv = layer.kind.projection(layer.config)

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        both = self.token_norm(self.embed_tokens(tokens)), self.hidden_norm(hidden)
        residual = self.merging(torch.cat(both, dim=-1))
        return residual, *self.qkv(self.before_attention(residual), *self.rotations[0](positions))
