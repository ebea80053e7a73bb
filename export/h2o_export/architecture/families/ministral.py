"""Ministral (Mistral AI, 2024 and 2025): Llama's layer. In version 3 queries far into a text are scaled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from h2o_export.architecture.families.base import Family
from h2o_export.architecture.rope import ORIGINAL, RopeConfig, read_rope
from h2o_export.architecture.values import integer, number

# transformers takes it where config.json says no rotation.
_ROTATION = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    ORIGINAL: 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


@dataclass(frozen=True)
class Ministral3Family(Family):
    def completed(self, raw: dict[str, Any]) -> dict[str, Any]:
        return raw if raw.get("rope_parameters") else {**raw, "rope_parameters": _ROTATION}

    def ropes(self, raw: dict[str, Any], rotated: int, layers: int) -> tuple[RopeConfig, ...]:
        rotation = raw["rope_parameters"]
        growth = isinstance(rotation, dict) and rotation.get("llama_4_scaling_beta")
        rope = read_rope(raw, rotated)
        if growth:
            original = integer(rotation, ORIGINAL)
            rope = replace(
                rope, original_context=original, query_growth=number(rotation, "llama_4_scaling_beta")
            )
        return (rope,) * layers


MINISTRAL = Family("ministral", "MinistralForCausalLM", default_window=4096, named_windows=True)
MINISTRAL3 = Ministral3Family("ministral3", "Ministral3ForCausalLM", default_head_size=128, default_eps=1e-5)
