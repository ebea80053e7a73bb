"""Ministral (Mistral AI, 2024 and 2025): Llama's layer. In version 3 queries far into a text are scaled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from h2o_export.architecture.families.family import Family
from h2o_export.architecture.families.llama import MISTRAL
from h2o_export.architecture.rope import ORIGINAL, RopeConfig, read_rope, rotation
from h2o_export.architecture.values import integer, number


@dataclass(frozen=True)
class Ministral3Family(Family):
    def ropes(self, raw: dict[str, Any], rotated: int, layers: int) -> tuple[RopeConfig, ...]:
        rope, given = read_rope(raw, rotated), rotation(raw)
        if given.get("llama_4_scaling_beta"):
            rope = replace(
                rope,
                original_context=integer(given, ORIGINAL),
                query_growth=number(given, "llama_4_scaling_beta"),
            )
        return (rope,) * layers


MINISTRAL = Family("ministral", "MinistralForCausalLM", named_windows=True, defaults=MISTRAL.defaults)
MINISTRAL3 = Ministral3Family(
    "ministral3",
    "Ministral3ForCausalLM",
    defaults={
        "vocab_size": 131_072,
        "intermediate_size": 14_336,
        "num_hidden_layers": 34,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 16.0,
            ORIGINAL: 16_384,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
)
