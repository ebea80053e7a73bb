"""Settings of random models some layers of which are Mamba-2: three shapes or more of each family."""

from __future__ import annotations

from typing import Any

from tests.family_settings import GRANITE

GRANITE_H = {  # layers of Mamba-2 with heads of 8 elements
    **GRANITE,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "num_local_experts": 0,
    "shared_intermediate_size": 88,
    "mamba_n_heads": 16,
    "mamba_d_state": 24,
}
NEMOTRON_H = {  # a norm of the state's output for each of two groups
    "head_dim": 16,
    "num_key_value_heads": 2,
    "layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention", "mlp"],
    "mamba_num_heads": 6,
    "mamba_head_dim": 20,
    "n_groups": 2,
    "ssm_state_size": 24,
}

# Name -> family and its settings.
MAMBAS: dict[str, tuple[str, dict[str, Any]]] = {
    "granitemoehybrid": ("granitemoehybrid", GRANITE_H),
    "granitemoehybrid-grouped": (
        "granitemoehybrid",
        {
            **GRANITE_H,
            "mamba_n_heads": 6,
            "mamba_expand": 3,
            "mamba_n_groups": 2,
            "mamba_d_conv": 3,
            "position_embedding_type": "rope",
            "tie_word_embeddings": True,
        },
    ),
    "granitemoehybrid-biased": (
        "granitemoehybrid",
        {
            **GRANITE_H,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "mamba_n_heads": 1,
            "mamba_expand": 1,
            "mamba_d_state": 40,
            "mamba_d_conv": 2,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "attention_bias": True,
        },
    ),
    "granitemoehybrid-mixed": (
        "granitemoehybrid",
        {**GRANITE_H, "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 40},
    ),
    "nemotron_h": ("nemotron_h", NEMOTRON_H),
    "nemotron_h-biased": (
        "nemotron_h",
        {
            **NEMOTRON_H,
            "layers_block_type": ["full_attention", "linear_attention", "linear_attention", "mlp"],
            "n_groups": 1,
            "mamba_num_heads": 5,
            "conv_kernel": 2,
            "use_bias": True,
            "use_conv_bias": False,
            "mlp_bias": True,
            "attention_bias": True,
        },
    ),
    "nemotron_h-mixed": (
        "nemotron_h",
        {
            **NEMOTRON_H,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "linear_attention"],
            "n_groups": 3,
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 72,
            "routed_scaling_factor": 2.5,
        },
    ),
}
