"""Mamba-2 (Dao and Gu, 2024, "Transformers are SSMs"), as Granite 4 H has it.

What a head adds to its state, and what all heads of a group write and read it by, go through a short causal
convolution, whose inputs of earlier tokens are given. What the state gives is gated, and then normed in each group.
n tokens, H heads of P elements in G groups, N rows of a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from h2o_export.architecture.config import ModelConfig
from h2o_export.architecture.mamba2 import Mamba2Config
from h2o_export.layers.blocks import RMSNorm, UnitNorm, convolved, swiglu
from h2o_export.layers.kind import LayerKind, rows
from h2o_runtime.bundles.manifest import TensorSpec
from h2o_runtime.layer_spec import LayerSpec, StateSizes


class Mamba2(LayerKind):
    """q [n, H, P], b and c [n, G, N]; decay, step, skip float32 [n, H]; the convolution's inputs."""

    name: ClassVar[str] = "mamba2"
    title: ClassVar[str] = "Mamba-2"
    float_matrices: ClassVar[tuple[str, ...]] = (".mamba.in_proj_dt.weight",)
    scalable: ClassVar[bool] = False

    def spec(self, config: ModelConfig) -> LayerSpec:
        mamba = config.own_sizes(Mamba2Config)
        return LayerSpec(
            kind=self.name,
            query_heads=mamba.heads_of_state,
            kv_heads=mamba.groups,
            head_size=mamba.state_size,
            value_size=mamba.value_size,
            query_size=mamba.value_size,
            out_size=mamba.value_size,
            rotary_size=0,
            scale=1.0,
            gate_size=mamba.values,
            state=StateSizes({"channels": mamba.channels, "tail": mamba.kernel - 1}),
        )

    def projection(self, config: ModelConfig) -> nn.Module:
        return Mamba2Projection(config.own_sizes(Mamba2Config), config.hidden_size)

    def output(self, config: ModelConfig) -> nn.Module:
        return Mamba2Output(config.own_sizes(Mamba2Config), config)

    def interface(self, config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
        mamba = config.own_sizes(Mamba2Config)
        return (
            rows("q", (mamba.heads_of_state, mamba.value_size), dtype),
            *(rows(name, (mamba.groups, mamba.state_size), dtype) for name in ("b", "c")),
            *(rows(name, (mamba.heads_of_state,), "float32") for name in ("decay", "step", "skip")),
            rows("mixed", (mamba.channels,), dtype),
            rows("gate_out", (mamba.values,), dtype),
        )

    def given(self, config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
        mamba = config.own_sizes(Mamba2Config)
        return (TensorSpec(name="tail", dtype=dtype, shape=(mamba.kernel - 1, mamba.channels)),)  # type: ignore[arg-type]

    def checkpoint_name(self, parameter: str) -> str:
        return f"mamba.{parameter.removeprefix('o_proj.')}"

    def reference(self, given: Mapping[str, NDArray[Any]], spec: LayerSpec) -> NDArray[np.float64]:
        """One token after the other, from an empty state."""
        names = ("q", "b", "c", "decay", "step", "skip")
        x, b, c, decay, step, skip = (given[name].astype(np.float64) for name in names)
        b, c = (np.repeat(each, spec.query_heads // spec.kv_heads, axis=1) for each in (b, c))
        state, out = np.zeros((spec.query_heads, spec.head_size, spec.value_size)), np.zeros(x.shape)
        for t in range(len(x)):
            state *= np.exp(decay[t])[:, None, None]
            state += b[t][:, :, None] * (step[t][:, None] * x[t])[:, None]
            out[t] = np.einsum("hk,hkv->hv", c[t], state) + skip[t][:, None] * x[t]
        return out


class Mamba2Projection(nn.Module):
    """Hidden states x [n, D], and the convolution's inputs of the tokens before → what `interface` names."""

    def __init__(self, mamba: Mamba2Config, hidden: int) -> None:
        super().__init__()
        self.mamba = mamba
        self.in_proj_gate = nn.Linear(hidden, mamba.values, mamba.bias)
        self.in_proj_mixed = nn.Linear(hidden, mamba.channels, mamba.bias)
        self.in_proj_dt = nn.Linear(hidden, mamba.heads_of_state, mamba.bias)
        self.conv1d = nn.Conv1d(
            mamba.channels, mamba.channels, mamba.kernel, groups=mamba.channels, bias=mamba.conv_bias
        )
        self.dt_bias = nn.Parameter(torch.empty(mamba.heads_of_state))
        self.A_log = nn.Parameter(torch.empty(mamba.heads_of_state))
        self.D = nn.Parameter(torch.empty(mamba.heads_of_state))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, tail: Tensor) -> tuple[Tensor, ...]:
        n, mamba = x.shape[0], self.mamba
        mixed = self.in_proj_mixed(x)
        made = functional.silu(convolved(tail, mixed, self.conv1d))
        q, b, c = torch.split(made, [mamba.values, mamba.shared, mamba.shared], dim=-1)
        step = functional.softplus(self.in_proj_dt(x).float() + self.dt_bias)
        skip = self.D.expand(n, mamba.heads_of_state)
        q = q.reshape(n, mamba.heads_of_state, mamba.value_size)
        b, c = (each.reshape(n, mamba.groups, mamba.state_size) for each in (b, c))
        return q, b, c, -self.A_log.exp() * step, step, skip, mixed, self.in_proj_gate(x)


class Mamba2Output(nn.Module):
    """What the state gave [n, H·P] times silu of the gate [n, H·P], normed in each group → [n, D]."""

    def __init__(self, mamba: Mamba2Config, config: ModelConfig) -> None:
        super().__init__()
        self.norm = (
            RMSNorm(mamba.values, config.rms_norm_eps)
            if mamba.groups == 1
            else GroupNorm(mamba.values, mamba.groups, config.rms_norm_eps)
        )
        self.out_proj = nn.Linear(mamba.values, config.hidden_size, mamba.bias)

    def forward(self, attention: Tensor, gate: Tensor) -> Tensor:
        made: Tensor = self.out_proj(self.norm(swiglu(gate, attention)))
        return made


class GroupNorm(nn.Module):
    """Root-mean-square norm of each of `groups` parts of a row by itself, x [n, size]."""

    def __init__(self, size: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.groups = groups
        self.unit = UnitNorm(eps)

    def forward(self, x: Tensor) -> Tensor:
        n, size = x.shape
        normed: Tensor = self.unit(x.view(n, self.groups, size // self.groups))
        return normed.view(n, size) * self.weight
