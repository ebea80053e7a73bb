"""DeepSeek-V2 and V3 (DeepSeek-AI, 2024) and what has their layer: Moonlight, Kimi-K2, Youtu-LLM, GLM-4.7-Flash."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from h2o_export.architecture.draft import DraftLayer, as_in_deepseek
from h2o_export.architecture.experts import ExpertsConfig, Router, read_routed
from h2o_export.architecture.families.family import LATENT, Family
from h2o_export.architecture.kind_sizes import KindSizes
from h2o_export.architecture.latent import LatentConfig
from h2o_export.architecture.rope import SHARE, rotation
from h2o_export.architecture.values import integer
from h2o_runtime.errors import CheckpointError, UnsupportedModelError


@dataclass(frozen=True)
class LatentFamily(Family):
    """Layers with latents in the cache."""

    layers: tuple[str, ...] = (LATENT,)
    pairs_stay: bool = False  # RoPE rotates neighbours and leaves them neighbours, whatever config.json says
    router: Router | None = None  # of its mixtures of experts; None: it has none

    def kind_sizes(self, raw: dict[str, Any]) -> tuple[KindSizes, ...]:
        return (LatentConfig.read(raw, self.pairs_stay),)

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        return None if self.router is None else read_routed(raw, self.router, layers)

    def draft(self, raw: dict[str, Any]) -> DraftLayer | None:
        """The first of the layers after the model's own."""
        layers = integer(raw, "num_nextn_predict_layers", 0, least=0)
        return as_in_deepseek(LATENT, integer(raw, "num_hidden_layers")) if layers else None


@dataclass(frozen=True)
class NamedMixtureFamily(LatentFamily):
    """`mlp_layer_types` says which layers have a mixture; without it, all but the first have one."""

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        types = raw.get("mlp_layer_types") or ["dense", *["sparse"] * (layers - 1)]
        if (
            not isinstance(types, list)
            or len(types) != layers
            or not {*map(str, types)} <= {"dense", "sparse"}
        ):
            raise CheckpointError(
                f"config.json: mlp_layer_types must name the kind of each of {layers} layers, dense or sparse, but "
                f"is {types!r}"
            )
        mixed = frozenset(layer for layer, kind in enumerate(types) if kind == "sparse")
        every = super().experts({**raw, "first_k_dense_replace": 0}, layers)
        return replace(every, layers=mixed) if every and mixed else None

    def check(self, raw: dict[str, Any]) -> None:
        super().check(raw)
        share = rotation(raw).get(SHARE, 1)
        if share != 1:
            raise UnsupportedModelError(f"partial rotary embedding ({SHARE} = {share!r}) is not supported")


_DEFAULTS: dict[str, Any] = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_interleave": True,
}
DEEPSEEK_V2 = LatentFamily(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    bias_flags=True,
    pairs_stay=True,
    router="softmax",
    aliases={"num_experts": "n_routed_experts"},
    defaults={
        **_DEFAULTS,
        "vocab_size": 102_400,
        "first_k_dense_replace": 0,
        "moe_intermediate_size": 1407,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
        "norm_topk_prob": False,
    },
)
DEEPSEEK_V3 = LatentFamily(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    attention_bias_flag=True,
    router="sigmoid",
    aliases={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    defaults={
        **_DEFAULTS,
        "vocab_size": 129_280,
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "max_position_embeddings": 4096,
        "first_k_dense_replace": 3,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "num_nextn_predict_layers": 1,
        "routed_scaling_factor": 2.5,
        "topk_group": 4,
        "norm_topk_prob": True,
    },
)
KIMI_K2 = replace(DEEPSEEK_V3, model_type="kimi_k2", built_as="deepseek_v3")
YOUTU = LatentFamily(
    "youtu",
    "YoutuForCausalLM",
    attention_bias_flag=True,
    defaults={
        **_DEFAULTS,
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
)
GLM4_MOE_LITE = NamedMixtureFamily(
    "glm4_moe_lite",
    "Glm4MoeLiteForCausalLM",
    attention_bias_flag=True,
    router="sigmoid",
    aliases={"num_local_experts": "n_routed_experts"},
    defaults={
        **_DEFAULTS,
        "vocab_size": 154_880,
        "hidden_size": 2048,
        "intermediate_size": 10_240,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "max_position_embeddings": 202_752,
        "rms_norm_eps": 1e-5,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "moe_intermediate_size": 1536,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.8,
        "topk_group": 1,
        "norm_topk_prob": True,
    },
)
