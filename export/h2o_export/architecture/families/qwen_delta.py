"""Qwen3-Next and Qwen3.5 (Alibaba, 2025 and 2026): three layers with a state to one of gated attention.

Both may have mixtures of experts, with a shared expert behind a gate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from h2o_export.architecture.arrangement import DELTA_BA, DELTA_QKVZ, Arrangement
from h2o_export.architecture.delta import DeltaConfig
from h2o_export.architecture.experts import ExpertsConfig
from h2o_export.architecture.families.base import FULL, GATED_DELTA, GATED_QUERY, Family
from h2o_export.architecture.families.qwen import MixtureFamily
from h2o_export.architecture.values import integer
from h2o_runtime.errors import CheckpointError

LINEAR = "linear_attention"  # as layer_types has it


@dataclass(frozen=True)
class DeltaFamily(Family):
    def layer_kinds(self, raw: dict[str, Any], layers: int) -> tuple[str, ...]:
        types = raw.get("layer_types")
        if types is None:
            interval = integer(raw, "full_attention_interval", 4)
            types = [FULL if (layer + 1) % interval == 0 else LINEAR for layer in range(layers)]
        if not isinstance(types, list) or len(types) != layers or not {*map(str, types)} <= {LINEAR, FULL}:
            raise CheckpointError(
                f"config.json: layer_types must name the kind of each of {layers} layers, {LINEAR} or {FULL}, but "
                f"is {types!r}"
            )
        return tuple(GATED_QUERY if one == FULL else GATED_DELTA for one in types)

    def delta(self, raw: dict[str, Any]) -> DeltaConfig | None:
        return (
            DeltaConfig.read(raw)
            if GATED_DELTA in self.layer_kinds(raw, integer(raw, "num_hidden_layers"))
            else None
        )


@dataclass(frozen=True)
class DeltaMixtureFamily(DeltaFamily, MixtureFamily):
    """`chosen`: experts of a token, where config.json does not say."""

    chosen: int = 8

    def completed(self, raw: dict[str, Any]) -> dict[str, Any]:
        given = {key: value for key, value in raw.items() if value is not None}
        least = {"norm_topk_prob": True, "moe_intermediate_size": 512, "num_experts_per_tok": self.chosen}
        without_dense = {"intermediate_size": given.get("moe_intermediate_size", 512)}  # files may omit it
        return {**least, **without_dense, **given}

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        routed = super().experts(raw, layers)
        shared = integer(raw, "shared_expert_intermediate_size", 512)
        return None if routed is None else replace(routed, shared_size=shared, shared_gate=True)


_LESS = Arrangement(less=1.0, whole=("linear_attn.norm.weight",))
QWEN3_5 = DeltaFamily(
    "qwen3_5_text",
    "Qwen3_5ForCausalLM",
    attention_bias_flag=True,
    qk_norm="head",
    arrangement=_LESS,
    default_rotated=0.25,
    default_head_size=256,
    has_window=False,
)
QWEN3_5_MOE = DeltaMixtureFamily(
    "qwen3_5_moe_text",
    "Qwen3_5MoeForCausalLM",
    attention_bias_flag=True,
    qk_norm="head",
    arrangement=replace(_LESS, stacked="halves"),
    default_rotated=0.25,
    default_head_size=256,
    has_window=False,
)
QWEN3_NEXT = DeltaMixtureFamily(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    attention_bias_flag=True,
    qk_norm="head",
    arrangement=replace(_LESS, fused=(DELTA_QKVZ, DELTA_BA), by_key_head=True),
    default_rotated=0.25,
    default_head_size=256,
    has_window=False,
    chosen=10,
)
