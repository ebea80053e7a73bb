"""Settings of random models some layers of which are short convolutions: three shapes of each family."""

from __future__ import annotations

from typing import Any

from tests.family_settings import layers

CONVOLUTION, FULL = "conv", "full_attention"
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}

# Name -> family and its settings.
CONVOLUTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": (
        "lfm2",
        {
            **layers(5, 2),
            "layer_types": [CONVOLUTION, FULL, CONVOLUTION, CONVOLUTION, FULL],
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "lfm2-biased": (
        "lfm2",
        {
            "num_hidden_layers": 4,
            "hidden_size": 100,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 40,
            "layer_types": [FULL, CONVOLUTION, CONVOLUTION, CONVOLUTION],
            "conv_L_cache": 5,
            "conv_bias": True,
            "tie_word_embeddings": False,
            "block_ffn_dim_multiplier": 1.3,
            "block_multiple_of": 24,
        },
    ),
    "lfm2-numbered": (
        "lfm2",
        {
            "num_hidden_layers": 3,
            "hidden_size": 144,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "full_attn_idxs": [1],
            "conv_L_cache": 2,
            "norm_eps": 1e-3,
            "block_multiple_of": 8,
        },
    ),
    "lfm2_moe": (
        "lfm2_moe",
        {
            **layers(5, 2),
            "layer_types": [CONVOLUTION, CONVOLUTION, FULL, CONVOLUTION, FULL],
            "num_dense_layers": 2,
            **EXPERTS,
        },
    ),
    "lfm2_moe-scaled": (
        "lfm2_moe",
        {
            "num_hidden_layers": 3,
            "hidden_size": 72,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "layer_types": [FULL, CONVOLUTION, CONVOLUTION],
            "num_dense_layers": 0,
            **EXPERTS,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.7,
            "tie_word_embeddings": False,
        },
    ),
    "lfm2_moe-biased": (
        "lfm2_moe",
        {
            "num_hidden_layers": 4,
            "hidden_size": 96,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "layer_types": [CONVOLUTION, FULL, CONVOLUTION, CONVOLUTION],
            "num_dense_layers": 3,
            **EXPERTS,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "conv_L_cache": 4,
            "conv_bias": True,
        },
    ),
}
