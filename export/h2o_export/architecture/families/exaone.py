"""EXAONE 4 (LG AI Research, 2025): norms of what attention and MLP give, none of what they take.

A model with windows rotates queries and keys in its window layers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.families.base import GROUPED_QUERY, WITHOUT_ROTATION, Family, Norms
from h2o_runtime.errors import CheckpointError


@dataclass(frozen=True)
class ExaoneFamily(Family):
    def layer_kinds(self, raw: dict[str, Any], layers: int) -> tuple[str, ...]:
        if raw.get("sliding_window", self.default_window) is None:
            return super().layer_kinds(raw, layers)
        types = raw.get("layer_types")
        if not isinstance(types, list) or len(types) != layers:
            raise CheckpointError(
                f"config.json: layer_types must name the kind of each of {layers} layers, but is {types!r}"
            )
        return tuple(GROUPED_QUERY if one == "sliding_attention" else WITHOUT_ROTATION for one in types)


EXAONE4 = ExaoneFamily(
    "exaone4",
    "Exaone4ForCausalLM",
    norms=Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    qk_norm="head",
    default_window=4096,
    default_eps=1e-5,
)
