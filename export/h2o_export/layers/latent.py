"""Multi-head latent attention (DeepSeek-AI, 2024, "DeepSeek-V2"): the cache holds one latent a token.

Keys and values of every head are linear in the latent c, so attention has two modes that compute the same
numbers. Absorbed: queries are mapped to the space of latents and attend to the cache directly, which is one
key head whose values are the first elements of its keys. Expanded: keys and values of every head are first
computed from the latents. The weights of both modes, W_uk and W_uv, are in small graphs beside the dense
graphs, which are the same for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from h2o_export.architecture.config import ModelConfig
from h2o_export.architecture.latent import NORM_EPS, LatentConfig
from h2o_export.layers.blocks import RMSNorm, rotate
from h2o_export.layers.kind import LayerKind, SmallGraph, Tensors, causal_attention, rows
from h2o_export.tensors import to_dtype
from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.model_spec import LatentSpec

# In a checkpoint: for each head W_uk, then W_uv.
MATRICES = ".self_attn.kv_b_proj.weight"


class Latent(LayerKind):
    """q [n, Hq, dn + dr]; k [n, 1, r + dr] = [c | rotated key], which the cache stores; attention gives [n,
    Hq, dv].
    """

    name: ClassVar[str] = "latent"
    title: ClassVar[str] = "latent attention"

    float_matrices: ClassVar[tuple[str, ...]] = (MATRICES,)  # they are in three graphs
    scalable: ClassVar[bool] = False

    def spec(self, config: ModelConfig) -> LayerSpec:
        """For the absorbed mode. The scale is that of the model's own queries and keys, not of latents."""
        latent = config.own_sizes(LatentConfig)
        return LayerSpec(
            kind=self.name,
            query_heads=config.query_heads,
            kv_heads=1,
            head_size=latent.row_size,
            value_size=latent.rank,
            shared=True,
            query_size=latent.query_size,
            out_size=latent.value_size,
            rotary_size=latent.rope_size,
            scale=config.rope.score_factor / math.sqrt(latent.query_size),
        )

    def manifest_fields(self, config: ModelConfig) -> dict[str, Any]:
        latent = config.own_sizes(LatentConfig)
        sizes = LatentSpec(
            rank=latent.rank,
            nope_size=latent.nope_size,
            rope_size=latent.rope_size,
            value_size=latent.value_size,
            query_rank=latent.query_rank,
        )
        return {"latent": sizes}

    def projection(self, config: ModelConfig) -> nn.Module:
        return LatentProjection(config)

    def output(self, config: ModelConfig) -> nn.Module:
        return nn.Linear(
            config.query_heads * config.own_sizes(LatentConfig).value_size, config.hidden_size, config.o_bias
        )

    def small_graphs(self, config: ModelConfig, dtype: str) -> tuple[SmallGraph, ...]:
        latent, heads = config.own_sizes(LatentConfig), config.query_heads
        q, attention = rows("q", (heads, latent.query_size), dtype), self.attended(config, dtype)
        absorbed = rows("absorbed", (heads, latent.row_size), dtype)
        context = rows("context", (heads, latent.rank), dtype)
        latents = rows("latents", (1, latent.row_size), dtype)
        keys = rows("k", (heads, latent.query_size), dtype)
        values = rows("v", (heads, latent.value_size), dtype)
        return (
            SmallGraph("absorb", Absorb, (q,), (absorbed,), step=True, kind="latent"),
            SmallGraph("contract", Contract, (context,), (attention,), step=True, kind="latent"),
            SmallGraph("expand", Expand, (latents,), (keys, values), step=False, kind="latent"),
        )

    def small_tensors(self, config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
        latent = config.own_sizes(LatentConfig)
        size = config.query_heads * (latent.nope_size + latent.value_size)
        return {f"model.layers.{layer}{MATRICES}": (size, latent.rank)}

    def small_parameters(self, checkpoint: Tensors, layer: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """keys: W_uk [Hq, dn, r]; values: W_uv [Hq, r, dv]. Each is stored once, for two graphs."""
        config, latent = checkpoint.config, checkpoint.config.own_sizes(LatentConfig)
        ((name, shape),) = self.small_tensors(config, layer).items()
        both = to_dtype(checkpoint.tensor(name, shape), dtype, name)
        split = [latent.nope_size, latent.value_size]
        keys, values = torch.split(both.view(config.query_heads, -1, latent.rank), split, dim=1)
        return {"keys": keys, "values": values.transpose(1, 2)}

    def small_inputs(
        self, graph: str, known: Mapping[str, NDArray[Any]], made: Mapping[str, NDArray[Any]], spec: LayerSpec
    ) -> Mapping[str, NDArray[Any]]:
        latents = known["k"]
        if graph != "contract":
            return {"latents": latents, "q": known["q"]}
        values = latents[..., : spec.value_size]
        return {"context": causal_attention(made["absorbed"], latents, values, spec.scale)}

    def reference(self, given: Mapping[str, NDArray[Any]], spec: LayerSpec) -> NDArray[np.float64]:
        return causal_attention(given["q"], given["k"], given["v"], spec.scale)


class LatentProjection(nn.Module):
    """Hidden states to queries, and to what the cache holds."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.latent = latent = config.own_sizes(LatentConfig)
        self.heads = config.query_heads
        hidden, made = config.hidden_size, config.query_heads * latent.query_size
        if latent.query_rank is None:
            self.q_proj = nn.Linear(hidden, made, bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden, latent.query_rank, config.qkv_bias)
            self.q_a_layernorm = RMSNorm(latent.query_rank, NORM_EPS)
            self.q_b_proj = nn.Linear(latent.query_rank, made, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, latent.row_size, config.qkv_bias)
        self.kv_a_layernorm = RMSNorm(latent.rank, NORM_EPS)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        n, latent = x.shape[0], self.latent
        q = (
            self.q_proj(x)
            if latent.query_rank is None
            else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        )
        q = q.view(n, self.heads, latent.query_size)
        q_nope, q_rope = torch.split(q, [latent.nope_size, latent.rope_size], dim=-1)
        c, k_rope = torch.split(self.kv_a_proj_with_mqa(x), [latent.rank, latent.rope_size], dim=-1)
        c = self.kv_a_layernorm(c).view(n, 1, latent.rank)
        k_rope = k_rope.view(n, 1, latent.rope_size)
        return (
            torch.cat((q_nope, self._rotate(q_rope, cos, sin)), dim=-1),
            torch.cat((c, self._rotate(k_rope, cos, sin)), dim=-1),
        )

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [n, H, dr]: neighbours or halves as in the checkpoint; the order afterwards is transformers'
        too.
        """
        if not self.latent.pairs_in:
            return rotate(x, cos, sin)
        n, heads, size = x.shape
        turned = rotate(x.view(n, heads, size // 2, 2).transpose(2, 3).reshape(n, heads, size), cos, sin)
        if not self.latent.pairs_out:
            return turned
        return turned.view(n, heads, 2, size // 2).transpose(2, 3).reshape(n, heads, size)


class Absorb(nn.Module):
    """Maps queries to the space of latents: q [n, Hq, dn + dr] → q_absorbed [n, Hq, r + dr]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.latent = latent = config.own_sizes(LatentConfig)
        self.keys = nn.Parameter(torch.empty(config.query_heads, latent.nope_size, latent.rank))

    def forward(self, q: Tensor) -> Tensor:
        nope, rope = torch.split(q, [self.latent.nope_size, self.latent.rope_size], dim=-1)
        carried = torch.matmul(nope.transpose(0, 1), self.keys)  # [Hq, n, r]
        return torch.cat((carried.transpose(0, 1), rope), dim=-1)


class Contract(nn.Module):
    """Maps attended latents back: context [n, Hq, r] → attention [n, Hq, dv]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        latent = config.own_sizes(LatentConfig)
        self.values = nn.Parameter(torch.empty(config.query_heads, latent.rank, latent.value_size))

    def forward(self, context: Tensor) -> Tensor:
        return torch.matmul(context.transpose(0, 1), self.values).transpose(0, 1)


class Expand(nn.Module):
    """Keys and values of every head: latents [n, 1, r + dr] → k [n, Hq, dn + dr], v [n, Hq, dv]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.latent = latent = config.own_sizes(LatentConfig)
        self.heads = config.query_heads
        self.keys = nn.Parameter(torch.empty(self.heads, latent.nope_size, latent.rank))
        self.values = nn.Parameter(torch.empty(self.heads, latent.rank, latent.value_size))

    def forward(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        n = latents.shape[0]
        c, rope = torch.split(latents, [self.latent.rank, self.latent.rope_size], dim=-1)
        c = c.squeeze(1)  # [n, r]
        nope = torch.matmul(self.keys, c.transpose(0, 1)).permute(2, 0, 1)  # [n, Hq, dn]
        shared = rope.expand(n, self.heads, self.latent.rope_size)
        return torch.cat((nope, shared), dim=-1), torch.matmul(c, self.values).transpose(0, 1)
