"""SmolLM3 (Hugging Face, 2025): Llama's layer, with some layers that do not rotate queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.families.family import GROUPED_QUERY, WITHOUT_ROTATION, Family
from h2o_export.architecture.values import integer, integers
from h2o_runtime.errors import CheckpointError


@dataclass(frozen=True)
class PartlyRotatedFamily(Family):
    def layer_kinds(self, raw: dict[str, Any], layers: int) -> tuple[str, ...]:
        """`no_rope_layers` has a 1 for a layer that rotates; without it, every few layers one does not."""
        if raw.get("no_rope_layers") is None:
            interval = integer(raw, "no_rope_layer_interval")
            rotates = [(layer + 1) % interval != 0 for layer in range(layers)]
        else:
            rotates = [flag != 0 for flag in integers(raw, "no_rope_layers")]
        if len(rotates) < layers:
            raise CheckpointError(
                f"config.json: no_rope_layers has {len(rotates)} entries for {layers} layers; the file is damaged"
            )
        return tuple(GROUPED_QUERY if rotated else WITHOUT_ROTATION for rotated in rotates[:layers])

    def unnamed_windows(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        """Those that do not rotate."""
        return tuple(kind == WITHOUT_ROTATION for kind in self.layer_kinds(raw, layers))


SMOLLM3 = PartlyRotatedFamily(
    "smollm3",
    "SmolLM3ForCausalLM",
    bias_flags=True,
    named_windows=True,
    defaults={
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "rope_theta": 2e6,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "no_rope_layer_interval": 4,
    },
)
