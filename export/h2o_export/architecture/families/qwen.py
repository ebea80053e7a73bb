"""Qwen (Alibaba, 2024 and 2025): biases on q, k and v in version 2, norms of their heads in version 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.experts import ExpertsConfig
from h2o_export.architecture.families.family import Family
from h2o_export.architecture.values import integer, integers


@dataclass(frozen=True)
class MixtureFamily(Family):
    """Layers with a mixture of experts: the softmax of all scores, then the largest."""

    def mixed(self, raw: dict[str, Any], layers: int) -> frozenset[int]:
        """Which layers have one."""
        step = integer(raw, "decoder_sparse_step")
        dense = set(integers(raw, "mlp_only_layers"))
        return frozenset(at for at in range(layers) if (at + 1) % step == 0 and at not in dense)

    def normalized(self, raw: dict[str, Any]) -> bool:
        """Whether the weights of chosen experts add up to 1."""
        return bool(raw["norm_topk_prob"])

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        mixed = self.mixed(raw, layers)
        if not mixed:
            return None
        count = integer(raw, "num_experts")
        return ExpertsConfig(
            count=count,
            chosen=integer(raw, "num_experts_per_tok", limit=count),
            size=integer(raw, "moe_intermediate_size"),
            layers=mixed,
            router="softmax",
            normalized=self.normalized(raw),
        )


@dataclass(frozen=True)
class LateWindowFamily(Family):
    """The first layers have no window."""

    def unnamed_windows(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        first = integer(raw, "max_window_layers", least=0)
        return tuple(layer >= first for layer in range(layers))


QWEN2 = LateWindowFamily(
    "qwen2",
    "Qwen2ForCausalLM",
    qkv_bias=True,
    named_windows=True,
    defaults={
        "vocab_size": 151_936,
        "intermediate_size": 22_016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32_768,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
)
QWEN3 = LateWindowFamily(
    "qwen3",
    "Qwen3ForCausalLM",
    attention_bias_flag=True,
    qk_norm="head",
    named_windows=True,
    defaults={**QWEN2.defaults, "head_dim": 128},
)
QWEN3_MOE = MixtureFamily(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    attention_bias_flag=True,
    qk_norm="head",
    aliases={"num_local_experts": "num_experts"},
    defaults={
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
)
