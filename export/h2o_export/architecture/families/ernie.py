"""ERNIE 4.5 (Baidu, 2025): Llama's layer, in which RoPE turns neighbours; with and without mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.arrangement import Arrangement
from h2o_export.architecture.experts import ExpertsConfig
from h2o_export.architecture.families.family import Biases, Family
from h2o_export.architecture.values import integer
from h2o_runtime.errors import UnsupportedModelError


@dataclass(frozen=True)
class ErnieFamily(Family):
    def biases(self, raw: dict[str, Any]) -> Biases:
        return Biases(*(bool(raw["use_bias"]),) * 3)


@dataclass(frozen=True)
class ErnieMixtureFamily(Family):
    """Every few layers of a span have a mixture: a softmax, then the largest after a learned correction."""

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        first, step = integer(raw, "moe_layer_start_index", least=0), integer(raw, "moe_layer_interval")
        last = (
            layers - 1 if raw["moe_layer_end_index"] == -1 else integer(raw, "moe_layer_end_index", least=0)
        )
        mixed = frozenset(at for at in range(layers) if (at + 1) % step == 0 and first <= at <= last)
        if not mixed:
            return None
        count, size = integer(raw, "moe_num_experts"), integer(raw, "moe_intermediate_size")
        return ExpertsConfig(
            count=count,
            chosen=integer(raw, "moe_k", limit=count),
            size=size,
            shared_size=size * integer(raw, "moe_num_shared_experts", least=0),
            layers=mixed,
            router="corrected",
            normalized=True,
        )

    def check(self, raw: dict[str, Any]) -> None:
        super().check(raw)
        for key, harmless in (("use_bias", False), ("moe_norm_min", 1e-12)):
            if raw[key] != harmless:
                raise UnsupportedModelError(
                    f"{key} = {raw[key]!r} beside mixtures of experts is not supported"
                )


ERNIE4_5 = ErnieFamily(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    arrangement=Arrangement(neighbours=True),
    defaults={
        "vocab_size": 103_424,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 18,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
        "use_bias": False,
    },
)
ERNIE4_5_MOE = ErnieMixtureFamily(
    "ernie4_5_moe",
    "Ernie4_5_MoeForCausalLM",
    arrangement=Arrangement(neighbours=True, renamed=((".mlp.moe_statics.", ".mlp.gate.moe_statics."),)),
    aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    defaults={
        "vocab_size": 103_424,
        "hidden_size": 2560,
        "intermediate_size": 12_288,
        "num_hidden_layers": 28,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
        "use_bias": False,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "moe_norm_min": 1e-12,
    },
)
