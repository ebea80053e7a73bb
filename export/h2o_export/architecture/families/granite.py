"""Granite 3 and 4 without mixtures (IBM, 2024): Llama's layer with constant factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.families.base import Family, Multipliers
from h2o_export.architecture.values import number


@dataclass(frozen=True)
class GraniteFamily(Family):
    def multipliers(self, raw: dict[str, Any]) -> Multipliers:
        own_scale = raw.get("attention_multiplier", 1.0) is not None
        return Multipliers(
            embedding=number(raw, "embedding_multiplier", 1.0),
            residual=number(raw, "residual_multiplier", 1.0),
            logits=1.0 / number(raw, "logits_scaling", 1.0),
            attention=number(raw, "attention_multiplier", 1.0) if own_scale else None,
        )


GRANITE = GraniteFamily("granite", "GraniteForCausalLM", bias_flags=True, has_window=False)
