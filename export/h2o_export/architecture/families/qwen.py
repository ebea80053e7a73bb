"""Qwen (Alibaba, 2024 and 2025): biases on q, k and v in version 2, norms of their heads in version 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.experts import ExpertsConfig
from h2o_export.architecture.families.base import Family
from h2o_export.architecture.values import integer, integers


@dataclass(frozen=True)
class MixtureFamily(Family):
    """Layers with a mixture of experts: the softmax of all scores, then the largest."""

    def check(self, raw: dict[str, Any]) -> None:
        super().check({key: value for key, value in raw.items() if key != "num_local_experts"})

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        step = integer(raw, "decoder_sparse_step", 1)
        dense = set(integers(raw, "mlp_only_layers"))
        mixed = frozenset(at for at in range(layers) if (at + 1) % step == 0 and at not in dense)
        if not mixed:
            return None
        count = integer(raw, "num_experts" if "num_experts" in raw else "num_local_experts")
        return ExpertsConfig(
            count=count,
            chosen=integer(raw, "num_experts_per_tok", 8, most=count),
            size=integer(raw, "moe_intermediate_size"),
            shared_size=0,
            layers=mixed,
            router="softmax",
            groups=1,
            chosen_groups=1,
            normalized=bool(raw.get("norm_topk_prob", False)),
            factor=1.0,
        )


@dataclass(frozen=True)
class LateWindowFamily(Family):
    """The first layers have no window."""

    def unnamed_windows(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        first = integer(raw, "max_window_layers", 28, least=0)
        return tuple(layer >= first for layer in range(layers))


QWEN2 = LateWindowFamily(
    "qwen2", "Qwen2ForCausalLM", qkv_bias=True, default_window=4096, window_flag=True, named_windows=True
)
QWEN3 = LateWindowFamily(
    "qwen3",
    "Qwen3ForCausalLM",
    bias_flags=True,
    qk_norm="head",
    default_head_size=128,
    default_window=4096,
    window_flag=True,
    named_windows=True,
)
QWEN3_MOE = MixtureFamily(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    attention_bias_flag=True,
    qk_norm="head",
    default_window=4096,
    window_flag=True,
)
