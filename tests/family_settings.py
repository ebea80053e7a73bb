"""Settings of random models of families whose layer is not Llama's."""

from __future__ import annotations

from typing import Any

from tests.reference import checkpoints

VOCAB = 512
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "rope_parameters": checkpoints.DEFAULT_ROPE,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


def layers(count: int, kv_heads: int, head_size: int | None = None) -> dict[str, Any]:
    """Settings of so many layers with so many heads of keys and values."""
    own = {"num_hidden_layers": count, "num_key_value_heads": kv_heads}
    return own if head_size is None else {**own, "head_dim": head_size}


GRANITE = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
    "attention_multiplier": 0.0625,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ERNIE_EXPERTS = {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 40, "moe_num_shared_experts": 2}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0 + pair / 8 for pair in range(12)],
    "long_factor": [1.0 + 2.0 * pair for pair in range(12)],
}
GPT_OSS = {
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 128,
    },
}
GEMMA4 = {
    "rope_parameters": None,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCAB,
    "sliding_window": 4096,
}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 64}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "rope_parameters": {
        **checkpoints.DEFAULT_ROPE,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
    },
}
MINISTRAL3 = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 4096,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
FULL_LAYERS = {"sliding_window": None, "layer_types": ["full_attention"] * 2}

# Name -> family and its settings: two shapes of each.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm3": ("smollm3", layers(4, 2, 32)),
    "smollm3-biased": (
        "smollm3",
        {
            **layers(2, 1, 64),
            "no_rope_layers": [0, 1],
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "granite": ("granite", {**layers(2, 2, 32), **GRANITE}),
    "granite-tied": (
        "granite",
        {**layers(2, 4, 64), **GRANITE, "tie_word_embeddings": True, "attention_bias": True},
    ),
    "olmo2": ("olmo2", layers(2, 4, 32)),
    "olmo2-grouped": ("olmo2", {**layers(2, 1, 64), "attention_bias": True}),
    "exaone4": ("exaone4", {**layers(2, 2, 32), **FULL_LAYERS}),
    "exaone4-tied": (
        "exaone4",
        {
            **layers(2, 1, 64),
            **FULL_LAYERS,
            "tie_word_embeddings": True,
            "rope_parameters": checkpoints.LLAMA3_ROPE,
        },
    ),
    "phi3": ("phi3", {**layers(2, 2), "hidden_size": 128}),
    "phi3-longrope": (
        "phi3",
        {
            **layers(2, 1),
            "hidden_size": 128,
            "tie_word_embeddings": True,
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 32,
        },
    ),
    "ernie4_5": ("ernie4_5", layers(2, 2, 40)),
    "ernie4_5-biased": ("ernie4_5", {**layers(3, 1, 24), "use_bias": True, "tie_word_embeddings": False}),
    "ernie4_5_moe": ("ernie4_5_moe", {**layers(3, 2), **ERNIE_EXPERTS}),
    "ernie4_5_moe-interval": (
        "ernie4_5_moe",
        {
            **layers(4, 1),
            **ERNIE_EXPERTS,
            "moe_num_shared_experts": 0,
            "moe_layer_interval": 2,
            "moe_layer_start_index": 2,
            "tie_word_embeddings": False,
        },
    ),
    "hunyuan": ("hunyuan_v1_dense", {**layers(2, 2, 40), "tie_word_embeddings": True}),
    "hunyuan-stretched": (
        "hunyuan_v1_dense",
        {
            **layers(3, 1, 32),
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 10000.0,
                "alpha": 1000.0,
                "factor": 1.0,
            },
        },
    ),
    "glm4": ("glm4", layers(2, 2, 32)),
    "glm4-plain": (
        "glm4",
        {
            **layers(2, 1, 64),
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": {**checkpoints.DEFAULT_ROPE, "partial_rotary_factor": 0.25},
        },
    ),
    "gemma2": ("gemma2", {**layers(2, 2, 32), "sliding_window": 4096, "query_pre_attn_scalar": 32}),
    "gemma2-capped": (
        "gemma2",
        {
            **layers(3, 1, 64),
            "sliding_window": 4096,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 4,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            **layers(2, 1),
            "num_attention_heads": 2,
            "head_dim": 256,
            "sliding_window": 4096,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": None,
            "query_pre_attn_scalar": 100,
        },
    ),
    "gemma3-scaled": (
        "gemma3_text",
        {
            **layers(3, 2, 64),
            "sliding_window": 4096,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "query_pre_attn_scalar": 64,
            "final_logit_softcapping": 5.0,
            "attn_logit_softcapping": 2.0,  # which only Gemma 2 heeds
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "gemma4": (
        "gemma4_text",
        {
            **GEMMA4,
            **layers(4, 1, 32),
            "global_head_dim": 64,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
            "hidden_size_per_layer_input": 32,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma4-experts": (
        "gemma4_text",
        {
            **GEMMA4,
            **layers(2, 4, 64),
            "global_head_dim": 512,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
            "sliding_window": 100,
            "layer_types": ["sliding_attention", "full_attention"],
            "tie_word_embeddings": False,
        },
    ),
    "gpt_oss": ("gpt_oss", {**layers(2, 2, 32), "sliding_window": 4096, **GPT_OSS}),
    "gpt_oss-clamped": (
        "gpt_oss",
        {**layers(2, 1, 64), "sliding_window": 4096, **GPT_OSS, "swiglu_limit": 0.5, "attention_bias": False},
    ),
    "ministral3": (
        "ministral3",
        {**layers(2, 2, 32), "max_position_embeddings": 65536, "rope_parameters": MINISTRAL3},
    ),
    "ministral3-tied": (
        "ministral3",
        {
            **layers(2, 1, 64),
            "max_position_embeddings": 8192,
            "rope_parameters": {
                **MINISTRAL3,
                "factor": 2.0,
                "mscale": 0.5,
                "original_max_position_embeddings": 256,
                "llama_4_scaling_beta": 0.4,
            },
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_moe": ("qwen3_moe", {**layers(2, 2, 32), **EXPERTS}),
    "qwen3_5": ("qwen3_5_text", {**layers(4, 2, 32), **DELTA}),
    "qwen3_5-attention-first": (
        "qwen3_5_text",
        {
            **layers(3, 1, 64),
            **DELTA,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_conv_kernel_dim": 3,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
    ),
    "qwen3_5_moe": ("qwen3_5_moe_text", {**layers(4, 2, 32), **DELTA, **SHARED}),
    "qwen3_5_moe-tied": (
        "qwen3_5_moe_text",
        {
            **layers(2, 1, 64),
            **DELTA,
            **SHARED,
            "linear_num_key_heads": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
    ),
    "qwen3_next": ("qwen3_next", {**layers(4, 2, 32), **DELTA, **SHARED}),
    "qwen3_next-partly-dense": (
        "qwen3_next",
        {
            **layers(3, 1, 64),
            **DELTA,
            **SHARED,
            "linear_num_value_heads": 6,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
        },
    ),
    "qwen3_moe-normalized": (
        "qwen3_moe",
        {**layers(3, 1, 64), **EXPERTS, "norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
}
