"""EXAONE 4 (LG AI Research, 2025): norms after attention and MLP, none before them.

A model with windows rotates queries and keys only in its window layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.families.family import GROUPED_QUERY, WITHOUT_ROTATION, Family, Norms
from h2o_export.architecture.values import integer


@dataclass(frozen=True)
class ExaoneFamily(Family):
    def layer_kinds(self, raw: dict[str, Any], layers: int) -> tuple[str, ...]:
        if raw["sliding_window"] is None:
            return super().layer_kinds(raw, layers)
        return tuple(
            GROUPED_QUERY if windowed else WITHOUT_ROTATION for windowed in self.windowed(raw, layers)
        )

    def unnamed_windows(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        """Every few layers one has none."""
        pattern = integer(raw, "sliding_window_pattern")
        return tuple((layer + 1) % pattern != 0 for layer in range(layers))


EXAONE4 = ExaoneFamily(
    "exaone4",
    "Exaone4ForCausalLM",
    norms=Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    qk_norm="head",
    named_windows=True,
    defaults={
        "vocab_size": 102_400,
        "intermediate_size": 16_384,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
)
