"""GLM-4 of 2025 (Zhipu AI): norms before and after attention and MLP; RoPE turns neighbours in half of a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.arrangement import GATE_UP, Arrangement
from h2o_export.architecture.families.family import Biases, Family, Norms
from h2o_export.architecture.rope import SHARE


@dataclass(frozen=True)
class GlmFamily(Family):
    def biases(self, raw: dict[str, Any]) -> Biases:
        return Biases(qkv=bool(raw["attention_bias"]))


GLM4 = GlmFamily(
    "glm4",
    "Glm4ForCausalLM",
    norms=Norms(
        "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"
    ),
    arrangement=Arrangement(fused=(GATE_UP,), neighbours=True),
    defaults={
        "vocab_size": 151_552,
        "intermediate_size": 13_696,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        SHARE: 0.5,
        "rms_norm_eps": 1.5625e-7,
        "attention_bias": True,
    },
)
