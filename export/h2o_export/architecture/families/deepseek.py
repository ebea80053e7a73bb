"""DeepSeek-V2 and V3 (DeepSeek-AI, 2024) and what has their layer: Moonlight, Kimi-K2, Youtu-LLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.experts import ExpertsConfig, Router, read_routed
from h2o_export.architecture.families.base import LATENT, Family
from h2o_export.architecture.latent import LatentConfig


@dataclass(frozen=True)
class LatentFamily(Family):
    """Layers with latents in the cache."""

    layers: tuple[str, ...] = (LATENT,)
    pairs_stay: bool = False  # RoPE rotates neighbours and leaves them neighbours, whatever config.json says
    router: Router | None = None  # of its mixtures of experts; None: it has none
    first_dense: int = 0  # layers without a mixture, if config.json does not say

    def latent(self, raw: dict[str, Any]) -> LatentConfig | None:
        return LatentConfig.read(raw, self.pairs_stay)

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        return None if self.router is None else read_routed(raw, self.router, self.first_dense, layers)


DEEPSEEK_V2 = LatentFamily(
    "deepseek_v2", "DeepseekV2ForCausalLM", bias_flags=True, pairs_stay=True, router="softmax"
)
DEEPSEEK_V3 = LatentFamily(
    "deepseek_v3", "DeepseekV3ForCausalLM", attention_bias_flag=True, router="sigmoid", first_dense=3
)
KIMI_K2 = LatentFamily(
    "kimi_k2",
    "DeepseekV3ForCausalLM",
    attention_bias_flag=True,
    router="sigmoid",
    first_dense=3,
    built_as="deepseek_v3",
)
YOUTU = LatentFamily("youtu", "YoutuForCausalLM", attention_bias_flag=True)
