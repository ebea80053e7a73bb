"""gpt-oss (OpenAI, 2025): attention sinks, a window in every other layer, experts with biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.arrangement import Arrangement
from h2o_export.architecture.experts import ClampedGate, ExpertsConfig
from h2o_export.architecture.families.family import Biases, Family
from h2o_export.architecture.rope import ORIGINAL
from h2o_export.architecture.values import integer, number


@dataclass(frozen=True)
class GptOssFamily(Family):
    def check(self, raw: dict[str, Any]) -> None:
        """Weights in MXFP4 are read as they are."""
        packed = raw.get("quantization_config")
        read = isinstance(packed, dict) and packed.get("quant_method") == "mxfp4"
        super().check(
            {key: value for key, value in raw.items() if not (read and key == "quantization_config")}
        )

    def unnamed_windows(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        return tuple(layer % 2 == 0 for layer in range(layers))

    def biases(self, raw: dict[str, Any]) -> Biases:
        flag = bool(raw["attention_bias"])
        return Biases(flag, flag)

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig:
        count = integer(raw, "num_local_experts")
        return ExpertsConfig(
            count=count,
            chosen=integer(raw, "num_experts_per_tok", limit=count),
            size=integer(raw, "intermediate_size"),
            layers=frozenset(range(layers)),
            router="chosen",
            biased=True,
            clamped=ClampedGate(number(raw, "swiglu_limit"), number(raw, "swiglu_alpha")),
        )


GPT_OSS = GptOssFamily(
    "gpt_oss",
    "GptOssForCausalLM",
    arrangement=Arrangement(stacked="interleaved"),
    sinks=True,
    named_windows=True,
    aliases={"num_experts": "num_local_experts"},
    defaults={
        "vocab_size": 201_088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            ORIGINAL: 4096,
        },
        "attention_bias": True,
        "sliding_window": 128,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
)
