"""Qwen3.5 (Alibaba, 2026): three layers with a state in place of keys to one of gated attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.arrangement import Arrangement
from h2o_export.architecture.delta import DeltaConfig
from h2o_export.architecture.families.base import FULL, GATED_DELTA, GATED_QUERY, Family
from h2o_export.architecture.values import integer
from h2o_runtime.errors import CheckpointError

LINEAR = "linear_attention"  # as layer_types has it


@dataclass(frozen=True)
class DeltaFamily(Family):
    def layer_kinds(self, raw: dict[str, Any], layers: int) -> tuple[str, ...]:
        types = raw.get("layer_types")
        if types is None:
            interval = integer(raw, "full_attention_interval", 4)
            types = [FULL if (layer + 1) % interval == 0 else LINEAR for layer in range(layers)]
        if not isinstance(types, list) or len(types) != layers or not {*map(str, types)} <= {LINEAR, FULL}:
            raise CheckpointError(
                f"config.json: layer_types must name the kind of each of {layers} layers, {LINEAR} or {FULL}, but "
                f"is {types!r}"
            )
        return tuple(GATED_QUERY if one == FULL else GATED_DELTA for one in types)

    def delta(self, raw: dict[str, Any]) -> DeltaConfig | None:
        return (
            DeltaConfig.read(raw)
            if GATED_DELTA in self.layer_kinds(raw, integer(raw, "num_hidden_layers"))
            else None
        )


QWEN3_5 = DeltaFamily(
    "qwen3_5_text",
    "Qwen3_5ForCausalLM",
    attention_bias_flag=True,
    qk_norm="head",
    arrangement=Arrangement(less=1.0, whole=("linear_attn.norm.weight",)),
    default_rotated=0.25,
    default_head_size=256,
    has_window=False,
)
