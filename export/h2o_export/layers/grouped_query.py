"""Multi-head attention with grouped queries (Ainslie et al., 2023): q, and one k and v for each group of heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from h2o_export.architecture.config import ModelConfig
from h2o_export.layers.blocks import RMSNorm, UnitNorm, of_length, rotate_first
from h2o_export.layers.kind import LayerKind, Tensors, causal_attention
from h2o_runtime.layer_spec import LayerSpec


class GroupedQuery(LayerKind):
    """q [n, Hq, d]; k, v [n, Hkv, d], which the cache stores; attention gives [n, Hq, d]."""

    name: ClassVar[str] = "grouped-query"
    title: ClassVar[str] = "grouped-query attention"
    at_run_time: ClassVar[str | None] = None  # the kind that such layers are there, if it is another

    def spec(self, config: ModelConfig) -> LayerSpec:
        d = config.head_size
        return LayerSpec(
            kind=self.at_run_time or self.name,
            query_heads=config.query_heads,
            kv_heads=config.kv_heads,
            head_size=d,
            value_size=d,
            query_size=d,
            out_size=d,
            rotary_size=config.rotated_size,
            scale=config.multipliers.attention or 1.0 / math.sqrt(d),
            softcap=config.scores_cap or 0.0,
            source=config.source,
            lends=config.lends,
        )

    def projection(self, config: ModelConfig) -> nn.Module:
        return QKV(config) if config.source is None else Queries(config)

    def output(self, config: ModelConfig) -> nn.Module:
        return nn.Linear(config.query_heads * config.head_size, config.hidden_size, config.o_bias)

    def reference(self, given: Mapping[str, NDArray[Any]], spec: LayerSpec) -> NDArray[np.float64]:
        return causal_attention(
            given["q"], given["k"], given["v"], spec.scale, spec.window, spec.softcap, spec.sinks
        )

    def small_tensors(self, config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
        return {f"model.layers.{layer}.self_attn.sinks": (config.query_heads,)} if config.sinks else {}

    def learned(self, checkpoint: Tensors, layer: int) -> dict[str, Any]:
        tensors = self.small_tensors(checkpoint.config, layer)
        return {
            name.rpartition(".")[2]: tuple(checkpoint.tensor(name, shape).float().tolist())
            for name, shape in tensors.items()
        }


class GroupedQueryWithoutRotation(GroupedQuery):
    """The same with queries and keys without positions (NoPE; Kazemnejad et al., 2023)."""

    name: ClassVar[str] = "grouped-query-without-rotation"
    at_run_time: ClassVar[str] = GroupedQuery.name

    def projection(self, config: ModelConfig) -> nn.Module:
        return QKV(config, rotated=False)


class GroupedQueryRotatedFirst(GroupedQuery):
    """The same with norms of queries and keys after their rotation."""

    name: ClassVar[str] = "grouped-query-rotated-first"
    at_run_time: ClassVar[str] = GroupedQuery.name

    def projection(self, config: ModelConfig) -> nn.Module:
        return NormedQKV(config)

    def checkpoint_name(self, parameter: str) -> str:
        whole = {"q_norm": "query_layernorm", "k_norm": "key_layernorm"}
        module, _, rest = parameter.partition(".")
        return super().checkpoint_name(f"{whole.get(module, module)}.{rest}")


class GatedQuery(GroupedQuery):
    """The same, and a gate for each element that attention gives: q_proj has a head's gate below its query."""

    name: ClassVar[str] = "gated-query"
    at_run_time: ClassVar[str] = GroupedQuery.name
    scalable: ClassVar[bool] = False

    def spec(self, config: ModelConfig) -> LayerSpec:
        """At run time only the gate is new, which goes from one dense graph to the next."""
        gate_size = config.query_heads * config.head_size
        return super().spec(config).model_copy(update={"gate_size": gate_size})

    def projection(self, config: ModelConfig) -> nn.Module:
        return GatedQKV(config)

    def output(self, config: ModelConfig) -> nn.Module:
        return GatedOutput(config.query_heads * config.head_size, config.hidden_size, config.o_bias)


class QKV(nn.Module):
    """Projections of a layer's attention: hidden states to q, k and v, with RoPE applied if `rotated`."""

    per_query = 1  # rows of q_proj for each element of a query

    def __init__(self, config: ModelConfig, rotated: bool = True) -> None:
        super().__init__()
        self.heads, self.head_size = config.query_heads, config.head_size
        self.qk_norm, self.keys_as_values = config.qk_norm, config.keys_as_values
        self.rotated = rotated
        grows = rotated and config.rope.query_growth  # of queries alone
        self.keys_factor = config.rope.attention_factor if grows else None
        bias = config.qkv_bias
        queries = config.query_heads * config.head_size
        self.q_proj = nn.Linear(config.hidden_size, self.per_query * queries, bias)
        self.k_proj = nn.Linear(config.hidden_size, config.kv_heads * config.head_size, bias)
        if not config.keys_as_values:
            self.v_proj = nn.Linear(config.hidden_size, config.kv_heads * config.head_size, bias)
        self.v_norm = UnitNorm(config.rms_norm_eps) if config.value_norm else nn.Identity()
        if config.qk_norm is not None:
            q_heads, k_heads = (
                (config.query_heads, config.kv_heads) if config.qk_norm == "projection" else (1, 1)
            )
            self.q_norm = RMSNorm(q_heads * config.head_size, config.rms_norm_eps)
            self.k_norm = RMSNorm(k_heads * config.head_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        k = self.k_proj(x)
        v = k if self.keys_as_values else self.v_proj(x)
        return self.finished(self.q_proj(x), k, v, cos, sin)

    def finished(self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """Norms and rotation of what the projections gave, [n, heads · d] each."""
        n, d = q.shape[0], self.head_size
        if self.qk_norm == "projection":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (rows.view(n, -1, d) for rows in (q, k, v))
        if self.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rotated:
            q = rotate_first(q, cos, sin)
            if self.keys_factor is not None:
                cos, sin = of_length(cos, sin, self.keys_factor)
            k = rotate_first(k, cos, sin)
        return q, k, self.v_norm(v)


class NormedQKV(QKV):
    """With norms of each head after the rotation."""

    def finished(self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (rows.view(rows.shape[0], -1, self.head_size) for rows in (q, k, v))
        return self.q_norm(rotate_first(q, cos, sin)), self.k_norm(rotate_first(k, cos, sin)), v


class Queries(nn.Module):
    """Hidden states to q alone, of a layer that reads the rows of another; norms are of each head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.size = config.head_size
        self.q_proj = nn.Linear(config.hidden_size, config.query_heads * config.head_size, config.qkv_bias)
        self.q_norm = RMSNorm(config.head_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor]:
        q = self.q_proj(x).view(x.shape[0], -1, self.size)
        return (rotate_first(self.q_norm(q), cos, sin),)


class GatedQKV(QKV):
    """With the gate [n, Hq · d] behind q, k and v."""

    per_query = 2

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        n, heads, d = x.shape[0], self.heads, self.head_size
        q, gate = self.q_proj(x).view(n, heads, 2 * d).split(d, dim=-1)
        made = self.finished(q.reshape(n, heads * d), self.k_proj(x), self.v_proj(x), cos, sin)
        return *made, gate.reshape(n, heads * d)


class GatedOutput(nn.Linear):
    """attention, gate [n, Hq · d] → [n, D]."""

    def forward(self, attention: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(attention * gate.sigmoid())
