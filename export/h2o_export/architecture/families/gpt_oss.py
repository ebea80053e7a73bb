"""gpt-oss (OpenAI, 2025): attention sinks, a window in every other layer, experts with biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.arrangement import Arrangement
from h2o_export.architecture.experts import ClampedGate, ExpertsConfig
from h2o_export.architecture.families.base import Biases, Family
from h2o_export.architecture.values import integer, number

_DEFAULTS: dict[str, Any] = {
    "num_local_experts": 128,
    "max_position_embeddings": 131_072,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150_000.0,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}


@dataclass(frozen=True)
class GptOssFamily(Family):
    def completed(self, raw: dict[str, Any]) -> dict[str, Any]:
        given = {key: value for key, value in raw.items() if value is not None}
        rotated = "rope_scaling" in given or "rope_parameters" in given
        return {**_DEFAULTS, **({"rope_parameters": None} if rotated else {}), **given}

    def check(self, raw: dict[str, Any]) -> None:
        """Weights in MXFP4 are read as they are."""
        packed = raw.get("quantization_config")
        read = isinstance(packed, dict) and packed.get("quant_method") == "mxfp4"
        known = {"num_local_experts", *(("quantization_config",) if read else ())}
        super().check({key: value for key, value in raw.items() if key not in known})

    def unnamed_windows(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        return tuple(layer % 2 == 0 for layer in range(layers))

    def biases(self, raw: dict[str, Any]) -> Biases:
        flag = bool(raw.get("attention_bias", True))
        return Biases(flag, flag)

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig:
        count = integer(raw, "num_local_experts")
        return ExpertsConfig(
            count=count,
            chosen=integer(raw, "num_experts_per_tok", 4, most=count),
            size=integer(raw, "intermediate_size"),
            shared_size=0,
            layers=frozenset(range(layers)),
            router="chosen",
            groups=1,
            chosen_groups=1,
            normalized=False,
            factor=1.0,
            biased=True,
            clamped=ClampedGate(number(raw, "swiglu_limit", 7.0), number(raw, "swiglu_alpha", 1.702)),
        )


GPT_OSS = GptOssFamily(
    "gpt_oss",
    "GptOssForCausalLM",
    arrangement=Arrangement(stacked="interleaved"),
    sinks=True,
    default_head_size=64,
    default_window=128,
    named_windows=True,
    default_eps=1e-5,
)
