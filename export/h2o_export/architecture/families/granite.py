"""Granite 3 and 4 without mixtures and states (IBM, 2024): Llama's layer with constant factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.families.family import Family, Multipliers
from h2o_export.architecture.values import number


@dataclass(frozen=True)
class GraniteFamily(Family):
    def multipliers(self, raw: dict[str, Any]) -> Multipliers:
        return Multipliers(
            embedding=number(raw, "embedding_multiplier"),
            residual=number(raw, "residual_multiplier"),
            logits=1.0 / number(raw, "logits_scaling"),
            attention=None if raw["attention_multiplier"] is None else number(raw, "attention_multiplier"),
        )


FACTORS = dict.fromkeys(
    ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier"), 1.0
)
GRANITE = GraniteFamily(
    "granite",
    "GraniteForCausalLM",
    bias_flags=True,
    defaults=FACTORS,
)
