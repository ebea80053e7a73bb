"""Random checkpoints of families whose layer is not Llama's, made with transformers."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

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
GRANITE = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
    "attention_multiplier": 0.0625,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
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
LESSENED = ("gemma2", "gemma3", "qwen3_5", "qwen3_next")
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
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 32}),
    "smollm3-biased": (
        "smollm3",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "no_rope_layers": [0, 1],
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "granite": ("granite", {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 32, **GRANITE}),
    "granite-tied": (
        "granite",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "head_dim": 64,
            **GRANITE,
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
    ),
    "olmo2": ("olmo2", {"num_hidden_layers": 2, "num_key_value_heads": 4, "head_dim": 32}),
    "olmo2-grouped": (
        "olmo2",
        {"num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 64, "attention_bias": True},
    ),
    "exaone4": (
        "exaone4",
        {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 32, **FULL_LAYERS},
    ),
    "exaone4-tied": (
        "exaone4",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
            **FULL_LAYERS,
            "tie_word_embeddings": True,
            "rope_parameters": checkpoints.LLAMA3_ROPE,
        },
    ),
    "phi3": ("phi3", {"num_hidden_layers": 2, "num_key_value_heads": 2, "hidden_size": 128}),
    "phi3-longrope": (
        "phi3",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "hidden_size": 128,
            "tie_word_embeddings": True,
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 32,
        },
    ),
    "glm4": ("glm4", {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 32}),
    "glm4-plain": (
        "glm4",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": {**checkpoints.DEFAULT_ROPE, "partial_rotary_factor": 0.25},
        },
    ),
    "gemma2": (
        "gemma2",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "sliding_window": 4096,
            "query_pre_attn_scalar": 32,
        },
    ),
    "gemma2-capped": (
        "gemma2",
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "head_dim": 64,
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
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
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
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "sliding_window": 4096,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "query_pre_attn_scalar": 64,
            "final_logit_softcapping": 5.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "gemma4": (
        "gemma4_text",
        {
            **GEMMA4,
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "global_head_dim": 64,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 32,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma4-experts": (
        "gemma4_text",
        {
            **GEMMA4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "head_dim": 64,
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
    "gpt_oss": (
        "gpt_oss",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "sliding_window": 4096,
            **GPT_OSS,
        },
    ),
    "gpt_oss-clamped": (
        "gpt_oss",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "sliding_window": 4096,
            **GPT_OSS,
            "swiglu_limit": 0.5,
            "attention_bias": False,
        },
    ),
    "ministral3": (
        "ministral3",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 65536,
            "rope_parameters": MINISTRAL3,
        },
    ),
    "ministral3-tied": (
        "ministral3",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
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
    "qwen3_moe": (
        "qwen3_moe",
        {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 32, **EXPERTS},
    ),
    "qwen3_5": ("qwen3_5_text", {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 32, **DELTA}),
    "qwen3_5-attention-first": (
        "qwen3_5_text",
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "head_dim": 64,
            **DELTA,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_conv_kernel_dim": 3,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
    ),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 32, **DELTA, **SHARED},
    ),
    "qwen3_5_moe-tied": (
        "qwen3_5_moe_text",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
            **DELTA,
            **SHARED,
            "linear_num_key_heads": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
    ),
    "qwen3_next": (
        "qwen3_next",
        {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 32, **DELTA, **SHARED},
    ),
    "qwen3_next-partly-dense": (
        "qwen3_next",
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "head_dim": 64,
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
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "head_dim": 64,
            **EXPERTS,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
}

SLIDING, FULL = "sliding_attention", "full_attention"
FOUR = {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 32}

# The same of models some layers of which have a window.
WINDOWS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {**FOUR, "num_hidden_layers": 2, "sliding_window": 50}),
    "ministral": ("ministral", {**FOUR, "sliding_window": 64, "layer_types": [SLIDING, FULL] * 2}),
    "phi3": (
        "phi3",
        {"num_hidden_layers": 2, "num_key_value_heads": 2, "hidden_size": 128, "sliding_window": 70},
    ),
    "qwen2": (
        "qwen2",
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "hidden_size": 128,
            "use_sliding_window": True,
            "sliding_window": 33,
            "max_window_layers": 1,
        },
    ),
    "qwen3": (
        "qwen3",
        {
            **FOUR,
            "use_sliding_window": True,
            "sliding_window": 100,
            "layer_types": [FULL, SLIDING, SLIDING, FULL],
        },
    ),
    "exaone4": ("exaone4", {**FOUR, "sliding_window": 64, "sliding_window_pattern": 4}),
    "gemma2": (
        "gemma2",
        {
            **FOUR,
            "query_pre_attn_scalar": 8,
            "sliding_window": 64,
            "attn_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 7,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 64,
            "rope_parameters": None,
        },
    ),
    "gemma4": (
        "gemma4_text",
        {
            **GEMMA4,
            "num_hidden_layers": 6,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "global_head_dim": 64,
            "sliding_window": 64,
            "layer_types": [SLIDING, SLIDING, FULL, FULL, SLIDING, FULL],
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 16,
        },
    ),
    "gpt_oss": ("gpt_oss", {**FOUR, "sliding_window": 64, **GPT_OSS}),
    "olmo3": (
        "olmo3",
        {
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "hidden_size": 128,
            "sliding_window": 64,
            "rope_parameters": {
                kind: {**checkpoints.DEFAULT_ROPE, "rope_theta": 5e5} for kind in (SLIDING, FULL)
            },
        },
    ),
    "olmo3-scaled": (
        "olmo3",
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "hidden_size": 128,
            "sliding_window": 96,
            "layer_types": [FULL, SLIDING, FULL],
            "rope_parameters": {
                FULL: {
                    "rope_type": "yarn",
                    "rope_theta": 5e5,
                    "factor": 8.0,
                    "original_max_position_embeddings": 512,
                    "attention_factor": 1.2,
                },
                SLIDING: {"rope_type": "default", "rope_theta": 5e5},
            },
        },
    ),
}


@torch.no_grad()
def _lessen_norms(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "norm" in name and "linear_attn" not in name:
            parameter -= 1


@torch.no_grad()
def _scale_layers(model: Any) -> None:
    """Scores of Gemma 4 are not divided by the root of the head size; its layers have a number each."""
    for name, parameter in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            parameter *= len(parameter) ** -0.25
        if name.endswith("router.scale"):
            parameter.fill_(len(parameter) ** 0.5)
        if name.endswith("per_expert_scale"):
            parameter.copy_(torch.linspace(0.5, 1.5, len(parameter)))
    for layer, one in enumerate(model.model.layers):
        one.layer_scalar.fill_(0.7 + 0.2 * layer)


def save(folder: Path, name: str, models: dict[str, tuple[str, dict[str, Any]]] = MODELS) -> Path:
    """A checkpoint of MODELS, or of WINDOWS."""
    family, settings = models[name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **deepcopy({**SIZES, **settings})))
    checkpoints._fill(model, seed=3)
    if family.startswith(LESSENED):  # whose norms multiply by one more than their weights
        _lessen_norms(model)
    if family.startswith("gemma4"):
        _scale_layers(model)
    model.save_pretrained(folder)
    for file in checkpoints.TOKENIZER_FILES:
        shutil.copy(checkpoints.EXAMPLE / file, folder / file)
    return folder
