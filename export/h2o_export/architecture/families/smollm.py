"""SmolLM3 (Hugging Face, 2025): Llama's layer, with some layers that do not rotate queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.families.base import GROUPED_QUERY, WITHOUT_ROTATION, Family
from h2o_export.architecture.values import integer, integers
from h2o_runtime.errors import CheckpointError


@dataclass(frozen=True)
class PartlyRotatedFamily(Family):
    def layer_kinds(self, raw: dict[str, Any], layers: int) -> tuple[str, ...]:
        """`no_rope_layers` has a 1 for a layer that rotates; without it, every few layers one does not."""
        if raw.get("no_rope_layers") is None:
            interval = integer(raw, "no_rope_layer_interval", 4)
            rotates = [(layer + 1) % interval != 0 for layer in range(layers)]
        else:
            rotates = [one != 0 for one in integers(raw, "no_rope_layers")]
        if len(rotates) < layers:
            raise CheckpointError(
                f"config.json: no_rope_layers has {len(rotates)} entries for {layers} layers; the file is damaged"
            )
        return tuple(GROUPED_QUERY if one else WITHOUT_ROTATION for one in rotates[:layers])


SMOLLM3 = PartlyRotatedFamily("smollm3", "SmolLM3ForCausalLM", bias_flags=True)
