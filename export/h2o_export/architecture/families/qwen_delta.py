"""Qwen3-Next and Qwen3.5 (Alibaba, 2025 and 2026): three layers with a state to one of gated attention.

Both may have mixtures of experts, with a shared expert behind a gate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from h2o_export.architecture.arrangement import DELTA_BA, DELTA_QKVZ, Arrangement
from h2o_export.architecture.delta import DeltaConfig
from h2o_export.architecture.draft import DraftLayer, as_in_qwen
from h2o_export.architecture.experts import ExpertsConfig
from h2o_export.architecture.families.family import FULL, GATED_DELTA, GATED_QUERY, Family, layer_names
from h2o_export.architecture.families.qwen import MixtureFamily
from h2o_export.architecture.kind_sizes import KindSizes
from h2o_export.architecture.rope import SHARE
from h2o_export.architecture.values import integer

LINEAR = "linear_attention"  # as layer_types has it


@dataclass(frozen=True)
class DeltaFamily(Family):
    def layer_kinds(self, raw: dict[str, Any], layers: int) -> tuple[str, ...]:
        types = raw.get("layer_types")
        if types is None:
            interval = integer(raw, "full_attention_interval")
            types = [FULL if (layer + 1) % interval == 0 else LINEAR for layer in range(layers)]
        names = layer_names(types, layers, LINEAR, FULL)
        return tuple(GATED_QUERY if name == FULL else GATED_DELTA for name in names)

    def kind_sizes(self, raw: dict[str, Any]) -> tuple[KindSizes, ...]:
        kinds = self.layer_kinds(raw, integer(raw, "num_hidden_layers"))
        return (DeltaConfig.read(raw),) if GATED_DELTA in kinds else ()


@dataclass(frozen=True)
class DraftingFamily(DeltaFamily):
    def draft(self, raw: dict[str, Any]) -> DraftLayer | None:
        layers = integer(raw, "mtp_num_hidden_layers", 0, least=0)
        usual = layers == 1 and not raw.get("mtp_use_dedicated_embeddings")
        return as_in_qwen(GATED_QUERY) if usual else None


@dataclass(frozen=True)
class DeltaMixtureFamily(DeltaFamily, MixtureFamily):
    """Beside its mixture a layer has an expert that sees every token, behind a gate."""

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        routed = super().experts(raw, layers)
        shared = integer(raw, "shared_expert_intermediate_size")
        return None if routed is None else replace(routed, shared_size=shared, shared_gate=True)


@dataclass(frozen=True)
class EveryLayerMixtureFamily(DeltaMixtureFamily):
    """Every layer has a mixture, and weights add up to 1, whatever config.json says."""

    def completed(self, raw: dict[str, Any]) -> dict[str, Any]:
        whole = super().completed(raw)
        return {**whole, "intermediate_size": whole["moe_intermediate_size"]}  # no layer has a dense MLP

    def mixed(self, raw: dict[str, Any], layers: int) -> frozenset[int]:
        return frozenset(range(layers))

    def normalized(self, raw: dict[str, Any]) -> bool:
        return True


@dataclass(frozen=True)
class DraftingMixtureFamily(DraftingFamily, EveryLayerMixtureFamily):
    """The draft layer has a mixture too."""


_LESS = Arrangement(less=1.0, whole=("linear_attn.norm.weight",))
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 248_320,
    "intermediate_size": 12_288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    SHARE: 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_MIXTURE_DEFAULTS: dict[str, Any] = {
    **_DEFAULTS,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}
QWEN3_5 = DraftingFamily(
    "qwen3_5_text",
    "Qwen3_5ForCausalLM",
    attention_bias_flag=True,
    qk_norm="head",
    arrangement=_LESS,
    defaults=_DEFAULTS,
)
QWEN3_5_MOE = DraftingMixtureFamily(
    "qwen3_5_moe_text",
    "Qwen3_5MoeForCausalLM",
    attention_bias_flag=True,
    qk_norm="head",
    arrangement=replace(_LESS, stacked="halves"),
    defaults=_MIXTURE_DEFAULTS,
)
QWEN3_NEXT = DeltaMixtureFamily(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    attention_bias_flag=True,
    qk_norm="head",
    arrangement=replace(_LESS, fused=(DELTA_QKVZ, DELTA_BA), by_key_head=True),
    defaults={
        **_MIXTURE_DEFAULTS,
        "vocab_size": 151_936,
        "intermediate_size": 5632,
        "num_hidden_layers": 48,
        "decoder_sparse_step": 1,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "norm_topk_prob": True,
    },
)
