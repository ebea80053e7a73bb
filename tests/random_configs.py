"""Random `config.json` of every model type: each key that may be omitted is absent or one of a few values.

Every key is drawn for every model type, because transformers ignores what a model type does not have.
"""

from __future__ import annotations

from random import Random
from typing import Any

from h2o_export.architecture.families import FAMILIES
from h2o_export.architecture.families.family import FULL, SLIDING
from h2o_export.architecture.rope import ORIGINAL

LAYERS = 4
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
# Of the model types that read them, without which a random model would be large.
OWN_SIZES: dict[str, Any] = {
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "shared_intermediate_size": 72,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 20,
    "ssm_state_size": 16,
    "moe_shared_expert_intermediate_size": 40,
    "vocab_size_per_layer_input": 512,
    "global_head_dim": 64,
    "hidden_size_per_layer_input": 16,
}
LINEAR = {"rope_type": "linear", "factor": 3.0}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
    "rope_theta": 3e4,
}
SCALINGS = (
    LINEAR,
    YARN,
    LLAMA3,
    {"rope_type": "yarn", "factor": 8.0},
    {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7, "rope_theta": 7e3},
    {**YARN, "beta_fast": 16.0, "truncate": False, "llama_4_scaling_beta": 0.2},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "default", "rope_theta": 2e4},
)
PHI3_SCALINGS = (
    {"rope_type": "default", "rope_theta": 2e4},
    {
        "type": "longrope",
        "short_factor": [1.0 + pair / 8 for pair in range(16)],
        "long_factor": [1.0 + 2.0 * pair for pair in range(16)],
    },
)
BY_KIND = (
    {FULL: {**LINEAR, "rope_theta": 2e5}, SLIDING: {"rope_type": "default", "rope_theta": 2e4}},
    {FULL: {"rope_type": "default", "rope_theta": 3e5}, SLIDING: {"rope_type": "default", "rope_theta": 1e4}},
)
CHOICES: dict[str, tuple[Any, ...]] = {
    "head_dim": (32, 64),
    "rms_norm_eps": (1e-5, 1e-3),
    "rope_theta": (5e4,),
    "rope_scaling": SCALINGS,
    "rope_parameters": SCALINGS,
    "original_max_position_embeddings": (32,),
    "tie_word_embeddings": (True, False),
    "attention_bias": (True, False),
    "mlp_bias": (True, False),
    "pretraining_tp": (2,),
    "sliding_window": (20, 100),
    "use_sliding_window": (True, False),
    "max_window_layers": (1, 3),
    "sliding_window_pattern": (2, 3),
    "no_rope_layers": ([1] * LAYERS, [0, 1, 1, 0]),
    "no_rope_layer_interval": (2,),
    "attn_logit_softcapping": (2.0,),
    "final_logit_softcapping": (5.0,),
    "query_pre_attn_scalar": (16, 100),
    "rope_local_base_freq": (2e4,),
    "embedding_multiplier": (3.0,),
    "residual_multiplier": (0.3,),
    "logits_scaling": (4.0,),
    "attention_multiplier": (0.1,),
    "norm_topk_prob": (True, False),
    "decoder_sparse_step": (1, 2),
    "mlp_only_layers": ([], [1]),
    "swiglu_limit": (0.5,),
    "swiglu_alpha": (1.2,),
    "routed_scaling_factor": (1.5,),
    "rope_interleave": (True, False),
    "attention_k_eq_v": (True, False),
    "num_kv_shared_layers": (0, 2),
    "use_double_wide_mlp": (True, False),
    "full_attention_interval": (2, 3),
    "conv_L_cache": (2, 4),
    "conv_bias": (True, False),
    "norm_eps": (1e-3,),
    "full_attn_idxs": ([1, 3],),
    "block_ff_dim": (160,),
    "block_auto_adjust_ff_dim": (True, False),
    "block_multiple_of": (8,),
    "tie_embedding": (True, False),
    "num_dense_layers": (0, 1),
}


def draw(seed: int, model_type: str) -> dict[str, Any]:
    """A `config.json`; most keys are absent."""
    random = Random(f"{model_type} {seed}")
    family = FAMILIES[model_type]
    raw = {"model_type": model_type, "architectures": [family.architecture], **SIZES, **OWN_SIZES}
    if "kv_lora_rank" in family.defaults:
        raw["num_key_value_heads"] = raw["num_attention_heads"]
    if "num_dense_layers" in family.defaults:  # transformers knows no default
        raw["layer_types"] = ["conv", FULL, "conv", "conv"]
    if "mamba_n_heads" in family.defaults:  # by default no layer attends
        raw["layer_types"] = ["mamba", "mamba", "attention", "mamba"]
    for key, values in (CHOICES | _own_choices(model_type)).items():
        if values and random.random() < 0.4:
            raw[key] = random.choice(values)
    return raw


def _own_choices(model_type: str) -> dict[str, tuple[Any, ...]]:
    """What differs where a model type knows fewer rotations, or has one for each kind of layer."""
    family = FAMILIES[model_type]
    own: dict[str, tuple[Any, ...]] = {}
    if model_type == "phi3":
        own |= {
            "rope_scaling": PHI3_SCALINGS,
            "rope_parameters": PHI3_SCALINGS[:1],
            "partial_rotary_factor": (),
            "head_dim": (),
        }
    if model_type == "ministral3":  # without the growth transformers fails
        grown = tuple({**one, "llama_4_scaling_beta": 0.2, ORIGINAL: 64} for one in SCALINGS)
        own |= {"rope_scaling": grown, "rope_parameters": grown}
    if "kv_lora_rank" in family.defaults:
        own["head_dim"] = ()  # transformers would rotate that many elements
    if model_type == "lfm2":
        own["layer_types"] = (["conv", FULL, FULL, "conv"],)
    if "mamba_n_heads" in family.defaults:
        own |= {
            "layer_types": ([FULL, *["linear_attention"] * (LAYERS - 1)], [FULL] * LAYERS),
            "num_local_experts": (0, 6),
            "position_embedding_type": ("rope", "nope"),
            "mamba_n_groups": (2, 4),
            "mamba_d_conv": (2, 3),
            "mamba_expand": (1, 3),
            "mamba_conv_bias": (True, False),
            "mamba_proj_bias": (True, False),
        }
    if model_type == "nemotron_h":  # transformers does not tie
        own |= {
            "tie_word_embeddings": (False,),
            "layers_block_type": (["mamba", "mlp", "mamba", "attention", "moe"],),
            "hybrid_override_pattern": ("M*EM-", "M-M*-"),
            "n_groups": (1, 2, 4),
            "mamba_d_conv": (2, 3),
            "use_conv_bias": (True, False),
            "use_bias": (True, False),
            "layer_norm_epsilon": (1e-3,),
            "mlp_bias": (),
            "rope_scaling": (),
            "rope_parameters": (),
        }
    if family.named_windows:
        own["layer_types"] = ([FULL, SLIDING] * 2, [FULL, SLIDING, SLIDING, FULL])
    if family.named_rotations:
        # With `type` transformers does not scale; and of two bases that rope_theta is for, Olmo 3 gets one.
        whole = () if model_type.startswith("gemma4") else (LINEAR, {**YARN, "rope_type": "yarn"})
        own |= {"rope_scaling": whole, "rope_parameters": BY_KIND}
        own |= {"rope_theta": ()} if model_type == "olmo3" else {}
    return own
