"""The dense parts of a decoder as torch modules, made to be traced on the meta device.

A model is cut at its attention: `DenseFirst` → attention → `DenseMiddle` → attention → … → `DenseLast`.
Parameter names follow the checkpoint's, so that weights bind by name and graphs read like the model.
Shapes: n tokens, Hq query heads, Hkv key/value heads, d head size, D hidden size, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from h2o_export.config import ModelConfig


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


class QKV(nn.Module):
    """Projections of a layer's attention: hidden states to q, k and v with RoPE applied."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        bias = config.qkv_bias
        self.q_proj = nn.Linear(config.hidden_size, config.query_heads * config.head_size, bias)
        self.k_proj = nn.Linear(config.hidden_size, config.kv_heads * config.head_size, bias)
        self.v_proj = nn.Linear(config.hidden_size, config.kv_heads * config.head_size, bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_size, config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n, d = x.shape[0], self.config.head_size
        q = self.q_proj(x).view(n, self.config.query_heads, d)
        k = self.k_proj(x).view(n, self.config.kv_heads, d)
        v = self.v_proj(x).view(n, self.config.kv_heads, d)
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q, cos, sin), rotate(k, cos, sin), v


class MLP(nn.Module):
    """SwiGLU feed-forward (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        bias = config.mlp_bias
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class AfterAttention(nn.Module):
    """What follows attention in a layer: output projection, residual, norm, MLP, residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.o_proj = nn.Linear(config.query_heads * config.head_size, config.hidden_size, config.o_bias)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, attention: Tensor, residual: Tensor) -> Tensor:
        residual = residual + self.o_proj(attention.flatten(1))  # [n, D]
        out: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return out


class DenseFirst(nn.Module):
    """dense_0: tokens, positions int64 [n] → residual [n, D], cos, sin float32 [n, d/2], q, k, v."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.inv_freq = nn.Parameter(torch.empty(config.head_size // 2), requires_grad=False)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.qkv = QKV(config)

    def forward(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        residual = self.embed_tokens(tokens)  # [n, D]
        angles = positions.float().unsqueeze(1) * self.inv_freq  # [n, d/2]
        cos, sin = angles.cos(), angles.sin()
        return residual, cos, sin, *self.qkv(self.input_layernorm(residual), cos, sin)


class DenseMiddle(nn.Module):
    """dense_i: attention [n, Hq, d] of layer i-1, residual [n, D], cos, sin → residual, q, k, v of layer i."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.after = AfterAttention(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.qkv = QKV(config)

    def forward(self, attention: Tensor, residual: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        residual = self.after(attention, residual)
        return residual, *self.qkv(self.input_layernorm(residual), cos, sin)


class DenseLast(nn.Module):
    """dense_n: attention [n, Hq, d] of the last layer, residual [n, D] → logits float32 [n, V]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.after = AfterAttention(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, attention: Tensor, residual: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.norm(self.after(attention, residual)))
        return logits.float()
