"""Hunyuan's dense models (Tencent, 2025): queries and keys are rotated, then normed; RoPE's base may grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.families.family import ROTATED_FIRST, Biases, Family
from h2o_export.architecture.rope import RopeConfig, rotation
from h2o_export.architecture.values import number


@dataclass(frozen=True)
class HunyuanFamily(Family):
    def biases(self, raw: dict[str, Any]) -> Biases:
        return Biases(bool(raw["attention_bias"]), bool(raw["attention_bias"]))

    def ropes(self, raw: dict[str, Any], rotated: int, layers: int) -> tuple[RopeConfig, ...]:
        """A dynamic scaling with `alpha` is a constant one, of the base (NTK-aware; bloc97, 2023)."""
        said = rotation(raw)
        if (said.get("rope_type") or said.get("type")) != "dynamic" or not said.get("alpha"):
            return super().ropes(raw, rotated, layers)
        base = number(said, "rope_theta") * number(said, "alpha") ** (rotated / (rotated - 2))
        return (RopeConfig(base),) * layers


HUNYUAN_DENSE = HunyuanFamily(
    "hunyuan_v1_dense",
    "HunYuanDenseV1ForCausalLM",
    layers=(ROTATED_FIRST,),
    qk_norm="head",
    defaults={"vocab_size": 290_943, "rms_norm_eps": 1e-5},
)
