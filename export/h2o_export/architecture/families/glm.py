"""GLM-4 of 2025 (Zhipu AI): norms before and after attention and MLP; RoPE turns neighbours in half of a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.arrangement import GATE_UP, Arrangement
from h2o_export.architecture.families.base import Biases, Family, Norms


@dataclass(frozen=True)
class GlmFamily(Family):
    def biases(self, raw: dict[str, Any]) -> Biases:
        return Biases(qkv=bool(raw.get("attention_bias", True)))


GLM4 = GlmFamily(
    "glm4",
    "Glm4ForCausalLM",
    norms=Norms(
        "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"
    ),
    arrangement=Arrangement(fused=(GATE_UP,), neighbours=True),
    default_rotated=0.5,
    default_head_size=128,
    has_window=False,
    default_eps=1.5625e-7,
)
