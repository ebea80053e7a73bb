"""The gated delta rule (Yang et al., 2024, "Gated Delta Networks"), as Qwen3-Next and Qwen3.5 have it.

Queries, keys and values go through a short causal convolution, whose inputs of earlier tokens are given. What the
state gives is normed in each head and gated. n tokens, Hk heads of keys, Hv of values, dk and dv their sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from h2o_export.architecture.config import ModelConfig
from h2o_export.architecture.delta import DeltaConfig
from h2o_export.layers.blocks import RMSNorm, convolved, swiglu
from h2o_export.layers.kind import LayerKind, rows
from h2o_runtime.bundles.manifest import TensorSpec
from h2o_runtime.layer_spec import LayerSpec, StateSizes

NORM_EPS = 1e-6  # of queries and keys, whatever rms_norm_eps says


class GatedDelta(LayerKind):
    """q [n, Hv, dk], k [n, Hk, dk], v [n, Hv, dv]; decay, beta float32 [n, Hv]; the convolution's inputs."""

    name: ClassVar[str] = "gated-delta"
    title: ClassVar[str] = "the gated delta rule"
    float_matrices: ClassVar[tuple[str, ...]] = (
        ".linear_attn.in_proj_a.weight",
        ".linear_attn.in_proj_b.weight",
    )
    scalable: ClassVar[bool] = False

    def spec(self, config: ModelConfig) -> LayerSpec:
        delta = config.own_sizes(DeltaConfig)
        return LayerSpec(
            kind=self.name,
            query_heads=delta.value_heads,
            kv_heads=delta.key_heads,
            head_size=delta.key_size,
            value_size=delta.value_size,
            query_size=delta.key_size,
            out_size=delta.value_size,
            rotary_size=0,
            scale=1.0 / math.sqrt(delta.key_size),
            gate_size=delta.values,
            state=StateSizes({"channels": delta.channels, "tail": delta.kernel - 1}),
        )

    def projection(self, config: ModelConfig) -> nn.Module:
        return DeltaProjection(config.own_sizes(DeltaConfig), config.hidden_size)

    def output(self, config: ModelConfig) -> nn.Module:
        return DeltaOutput(config.own_sizes(DeltaConfig), config)

    def interface(self, config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
        delta = config.own_sizes(DeltaConfig)
        return (
            rows("q", (delta.value_heads, delta.key_size), dtype),
            rows("k", (delta.key_heads, delta.key_size), dtype),
            rows("v", (delta.value_heads, delta.value_size), dtype),
            rows("decay", (delta.value_heads,), "float32"),
            rows("beta", (delta.value_heads,), "float32"),
            rows("mixed", (delta.channels,), dtype),
            rows("gate_out", (delta.values,), dtype),
        )

    def given(self, config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
        delta = config.own_sizes(DeltaConfig)
        return (TensorSpec(name="tail", dtype=dtype, shape=(delta.kernel - 1, delta.channels)),)  # type: ignore[arg-type]

    def checkpoint_name(self, parameter: str) -> str:
        return f"linear_attn.{parameter.removeprefix('o_proj.')}"

    def reference(self, given: Mapping[str, NDArray[Any]], spec: LayerSpec) -> NDArray[np.float64]:
        """One token after the other, from an empty state."""
        q, k, v, decay, beta = (given[name].astype(np.float64) for name in ("q", "k", "v", "decay", "beta"))
        k = np.repeat(k, spec.query_heads // spec.kv_heads, axis=1)
        state, out = np.zeros((spec.query_heads, spec.head_size, spec.value_size)), np.zeros(v.shape)
        for t in range(len(q)):
            state *= np.exp(decay[t])[:, None, None]
            delta = beta[t][:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], state))
            state += k[t][:, :, None] * delta[:, None]
            out[t] = spec.scale * np.einsum("hk,hkv->hv", q[t], state)
        return out


class DeltaProjection(nn.Module):
    """Hidden states x [n, D], and the convolution's inputs of the tokens before → what `interface` names."""

    def __init__(self, delta: DeltaConfig, hidden: int) -> None:
        super().__init__()
        self.delta = delta
        self.in_proj_qkv = nn.Linear(hidden, delta.channels, bias=False)
        self.in_proj_z = nn.Linear(hidden, delta.values, bias=False)
        self.in_proj_b = nn.Linear(hidden, delta.value_heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, delta.value_heads, bias=False)
        self.conv1d = nn.Conv1d(
            delta.channels, delta.channels, delta.kernel, groups=delta.channels, bias=False
        )
        self.dt_bias = nn.Parameter(torch.empty(delta.value_heads))
        self.A_log = nn.Parameter(torch.empty(delta.value_heads))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, tail: Tensor) -> tuple[Tensor, ...]:
        n, delta = x.shape[0], self.delta
        mixed = self.in_proj_qkv(x)
        made = functional.silu(convolved(tail, mixed, self.conv1d))
        q, k, v = torch.split(made, [delta.keys, delta.keys, delta.values], dim=-1)
        q, k = (_unit(one.view(n, delta.key_heads, delta.key_size)) for one in (q, k))
        q = q.repeat_interleave(delta.value_heads // delta.key_heads, dim=1)
        decay = -self.A_log.exp() * functional.softplus(self.in_proj_a(x).float() + self.dt_bias)
        beta = self.in_proj_b(x).float().sigmoid()
        v = v.reshape(n, delta.value_heads, delta.value_size)
        return q, k, v, decay, beta, mixed, self.in_proj_z(x)


def _unit(x: Tensor) -> Tensor:
    """Rows of length 1."""
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).sum(-1, keepdim=True) + NORM_EPS)).to(x.dtype)


class DeltaOutput(nn.Module):
    """What the state gave [n, Hv·dv], normed in each head, times silu of the gate [n, Hv·dv] → [n, D]."""

    def __init__(self, delta: DeltaConfig, config: ModelConfig) -> None:
        super().__init__()
        self.delta = delta
        self.norm = RMSNorm(delta.value_size, config.rms_norm_eps)
        self.out_proj = nn.Linear(delta.values, config.hidden_size, bias=False)

    def forward(self, attention: Tensor, gate: Tensor) -> Tensor:
        n, delta = attention.shape[0], self.delta
        normed = self.norm(attention.view(n, delta.value_heads, delta.value_size))
        made: Tensor = self.out_proj(swiglu(gate, normed.view(n, delta.values)))
        return made
