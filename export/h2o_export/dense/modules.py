"""The dense graphs of a decoder as torch modules, made to be traced on the meta device.

A model is cut at its attention: `DenseFirst` → attention → `DenseMiddle` → attention → … → `DenseLast`.
Parameter names follow the checkpoint's, so that weights bind by name and graphs read like the model. What lies
around attention is the layer kind's, and so are its tensors, here those of grouped queries.
Shapes: n tokens, Hq query heads, Hkv key/value heads, d head size, D hidden size, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from h2o_export.architecture.config import ModelConfig
from h2o_export.dense.experts import MixtureOfExperts
from h2o_export.dense.experts_beside import ExpertsBeside
from h2o_export.dense.layer_embedding import OwnEmbedding
from h2o_export.dense.mlp import feed_forward
from h2o_export.layers.blocks import RMSNorm, embedding
from h2o_export.plan import Plan


def norm(config: ModelConfig, name: str | None) -> nn.Module:
    """The RMS norm that a checkpoint's layer has under `name`; None: it has none there."""
    return nn.Identity() if name is None else RMSNorm(config.hidden_size, config.rms_norm_eps)


class AfterAttention(nn.Module):
    """What follows attention in a layer: output projection, residual, MLP or experts, residual, and the norms.

    Some layers end before their MLP.
    """

    def __init__(self, plan: Plan, layer: int) -> None:
        super().__init__()
        config, own = plan.config, plan.layers[layer]
        self.o_proj = own.kind.output(own.config)
        self.after_attention = norm(config, config.norms.after_attention)
        self.has_mlp = config.has_mlp(layer)
        if self.has_mlp:
            self._add_mlp(config, layer, own.config.intermediate_size)
        self.multiplier = config.multipliers.residual
        self.gates = int(own.spec.gate_size > 0)
        self.beside = self.gates + (
            2 if config.layer_embedding else 0
        )  # inputs besides attention and residual
        if config.layer_embedding is not None:
            self.own = OwnEmbedding(config)
        if config.layer_scalar:
            self.layer_scalar = nn.Parameter(torch.empty(1))
        self.scales = config.layer_scalar

    def _add_mlp(self, config: ModelConfig, layer: int, size: int) -> None:
        self.before_mlp = norm(config, config.norms.before_mlp)
        experts = config.experts if config.routed(layer) else None
        beside = experts is not None and experts.beside_mlp
        self.mlp = feed_forward(config, size) if experts is None or beside else MixtureOfExperts(config)
        self.experts_beside = ExpertsBeside(config) if beside else None
        self.after_mlp = norm(config, config.norms.after_mlp)

    def forward(self, attention: Tensor, residual: Tensor, *more: Tensor) -> Tensor:
        gate, embedding = more[: self.gates], more[self.gates :]
        added = self.after_attention(self.o_proj(attention.flatten(1), *gate))  # [n, D]
        residual = residual + scaled(added, self.multiplier)
        if self.has_mlp:
            residual = self._behind_mlp(residual)
        if embedding:
            residual = self.own(residual, *embedding)
        return residual * self.layer_scalar if self.scales else residual

    def _behind_mlp(self, residual: Tensor) -> Tensor:
        added = self.mlp(self.before_mlp(residual))
        if self.experts_beside is not None:
            added = self.experts_beside(added, residual)
        return residual + scaled(self.after_mlp(added), self.multiplier)


def scaled(x: Tensor, by: float) -> Tensor:
    """x · by, and no node in the graph where `by` is 1."""
    return x if by == 1 else x * by


class Angles(nn.Module):
    """A table of angles: positions int64 [n] → cos, sin float32 [n, d/2], which grow as queries do."""

    def __init__(self, plan: Plan, table: int) -> None:
        super().__init__()
        self.inv_freq = nn.Parameter(torch.empty(plan.rotary_sizes[table] // 2), requires_grad=False)
        rope = plan.config.rotations[table]
        self.attention_factor, self.query_growth = rope.attention_factor, rope.query_growth
        self.original_context = rope.original_context

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.float().unsqueeze(1) * self.inv_freq  # [n, d/2]
        cos, sin = (scaled(table, self.attention_factor) for table in (angles.cos(), angles.sin()))
        if not self.query_growth:
            return cos, sin
        times = torch.log(1 + torch.floor(positions.float() / self.original_context)).unsqueeze(1)
        growth = 1 + self.query_growth * times  # [n, 1]
        return cos * growth, sin * growth


class DenseFirst(nn.Module):
    """dense_0: tokens, positions int64 [n] → residual [n, D], cos, sin float32 [n, d/2] of each table of angles,
    q, k, v. `given` are what the layer kind names so."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        config, layer = plan.config, plan.layers[0]
        self.embed_tokens = embedding(config.vocab_size, config.hidden_size)
        self.rotations = nn.ModuleList(Angles(plan, table) for table in range(len(config.rotations)))
        self.before_attention = norm(config, config.norms.before_attention)
        self.qkv = layer.kind.projection(layer.config)
        self.rotation = config.rotation(0)
        self.multiplier = config.multipliers.embedding

    def forward(self, tokens: Tensor, positions: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        residual = scaled(self.embed_tokens(tokens), self.multiplier)  # [n, D]
        tables = [table(positions) for table in self.rotations]
        heads = self.qkv(self.before_attention(residual), *tables[self.rotation], *given)
        return residual, *(each for table in tables for each in table), *heads


class DenseMiddle(nn.Module):
    """dense_i: attention [n, Hq, d] of layer i-1, residual [n, D], cos, sin → residual, q, k, v of layer i.

    `more` are the gate of layer i-1, tokens int64 [n] and what begins the residual stream [n, D], where they are
    needed, and what is given of the tokens before to layer i.
    """

    def __init__(self, plan: Plan, before: int) -> None:
        super().__init__()
        config, layer = plan.config, plan.layers[before + 1]
        self.after = AfterAttention(plan, before)
        self.before_attention = norm(config, config.norms.before_attention)
        self.qkv = layer.kind.projection(layer.config)
        self.beside = self.after.beside

    def forward(
        self, attention: Tensor, residual: Tensor, cos: Tensor, sin: Tensor, *more: Tensor
    ) -> tuple[Tensor, ...]:
        residual = self.after(attention, residual, *more[: self.beside])
        return residual, *self.qkv(self.before_attention(residual), cos, sin, *more[self.beside :])


class DenseLast(nn.Module):
    """dense_n: attention [n, Hq, d] of the last layer, residual [n, D] → logits float32 [n, V], and what the head
    reads [n, D] where a draft layer reads it too.
    """

    def __init__(self, plan: Plan, before: int) -> None:
        super().__init__()
        config = plan.config
        self.after = AfterAttention(plan, before)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.multiplier = config.multipliers.logits
        self.cap = config.logits_cap
        self.drafts = config.draft is not None

    def forward(self, attention: Tensor, residual: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        hidden = self.norm(self.after(attention, residual, *more))
        logits = scaled(self.lm_head(hidden).float(), self.multiplier)
        if self.cap is not None:
            logits = (logits / self.cap).tanh() * self.cap
        return (logits, hidden) if self.drafts else (logits,)
