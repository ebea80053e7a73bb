"""Reading config.json: what is understood, and the sentence for everything that is not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.reference.checkpoints import LLAMA3_ROPE

from h2o_export.architecture.config import ModelConfig
from h2o_export.architecture.families import FAMILIES
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 700,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
PHI3 = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}
SCALED = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 1024,
    "long_factor": [1.0 + 2 * pair for pair in range(16)],
    "short_factor": [1.0 + pair / 8 for pair in range(16)],
}


def read(**changes: Any) -> ModelConfig:
    """The config of LLAMA with some keys changed; None removes a key."""
    raw = {key: value for key, value in {**LLAMA, **changes}.items() if value is not None}
    return ModelConfig.from_huggingface(raw)


def of_family(name: str, **changes: Any) -> ModelConfig:
    family = FAMILIES[name]
    defaults = {"model_type": name, "architectures": [family.architecture]}
    if name == "mistral":
        defaults["sliding_window"] = 0  # type: ignore[assignment]
    return read(**{**defaults, **changes})


# --- What is read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 48, 100, 120, 160, 192, 256, 512])
def test_the_head_size_need_not_divide_the_hidden_size(size: int) -> None:
    assert read(head_dim=size).head_size == size


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [1]}
LFM2: dict[str, Any] = {
    "model_type": "lfm2",
    "architectures": None,
    "layer_types": ["conv", "full_attention", "conv"],
}
GRANITE_H: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "architectures": None,
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_n_heads": 8,
}
NEMOTRON_H: dict[str, Any] = {
    "model_type": "nemotron_h",
    "architectures": None,
    "tie_word_embeddings": False,
    "hybrid_override_pattern": "M*-M",
}


def test_an_architecture_may_be_spelled_with_more_underscores() -> None:
    spelled = [of_family("ernie4_5", architectures=[f"Ernie4_5{one}ForCausalLM"]) for one in ("", "_")]
    assert spelled[0] == spelled[1]


# --- What is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"model_type": "gpt2"},
            "model type 'gpt2' is not supported.*supported are llama, mistral, ministral, ministral3, qwen2",
        ),
        ({"model_type": "mixtral"}, "model type 'mixtral' is not supported"),
        ({"model_type": "llama4_text"}, "most of its layers attend within chunks of a text"),
        (
            {"model_type": "ernie4_5_moe", "use_bias": True, "architectures": None},
            "use_bias = True beside mixtures of experts is not supported",
        ),
        ({**LFM2, "conv_dim": 100}, r"a convolution of another width \(conv_dim = 100\) is not supported"),
        ({**LFM2, "block_use_swiglu": False}, "an MLP without a gate"),
        ({**LFM2, "use_pos_enc": False}, "attention without positions"),
        ({**LFM2, "layer_types": ["conv"] * 3}, "a model without attention in any layer is not supported"),
        ({**LFM2, "layer_types": ["conv", "sliding_attention"]}, "layers with a sliding window"),
        ({**LFM2, "model_type": "lfm2_moe", "use_expert_bias": False}, "choosing experts without a bias"),
        ({"model_type": "bamba"}, "its layers of Mamba-2 are arranged in another way"),
        ({**GRANITE_H, "layer_types": ["mamba"] * 3}, "a model without attention in any layer"),
        ({**GRANITE_H, "time_step_limit": [0.0, 0.1]}, r"limited steps \(time_step_limit = \[0.0, 0.1\]\)"),
        ({**NEMOTRON_H, "hybrid_override_pattern": "M*--"}, r"an MLP that does not follow .* \(block 3\)"),
        ({**NEMOTRON_H, "hybrid_override_pattern": "M-"}, "a model without attention in any layer"),
        ({**NEMOTRON_H, "hybrid_override_pattern": "*-"}, "a model without Mamba-2 in any layer"),
        ({**NEMOTRON_H, "mlp_hidden_act": "silu"}, r"the activation \(mlp_hidden_act = 'silu'\)"),
        ({**NEMOTRON_H, "moe_latent_size": 8}, "experts that read a projection"),
        ({**NEMOTRON_H, "tie_word_embeddings": True}, "a head that is the embedding"),
        (
            {**NEMOTRON_H, "hybrid_override_pattern": "M*E", "mlp_bias": True},
            "mlp_bias = True beside mixtures of experts",
        ),
        ({**GRANITE_H, "mamba_d_state": 12}, "states of 12 times 64 elements in layers of Mamba-2"),
        ({"model_type": "gemma3n_text"}, "its layers have several residual streams"),
        ({"model_type": "recurrent_gemma"}, "its decoder layer is another; supported are llama"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "expected LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, r"the activation \(hidden_act = 'gelu'\) is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial rotary embedding"),
        ({"quantization_config": {"quant_method": "gptq"}}, "a quantized checkpoint"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"head_dim": 33}, "head size 33 is not supported; supported are even sizes from 16 to 256, and 512"),
        ({"hidden_size": 64}, "head size 8 is not supported"),
        (
            {"rope_scaling": {"type": "axial", "factor": 2.0}},
            "RoPE scaling 'axial'.*default, linear, dynamic, proportional, llama3, yarn",
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types names layers with a sliding window",
        ),
    ],
)
def test_a_missing_feature_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says) as caught:
        read(**changes)
    assert "\n" not in str(caught.value)


def test_layers_of_qwen3_moe_that_have_no_mixture() -> None:
    def mixed(**changes: Any) -> list[bool]:
        config = of_family("qwen3_moe", **{**EXPERTS, **changes})
        return [config.routed(layer) for layer in range(config.layers)]

    assert mixed() == [True, False, True]
    assert mixed(mlp_only_layers=None, decoder_sparse_step=2) == [False, True, False]
    assert mixed(mlp_only_layers=[0, 1, 2]) == [False, False, False]
    with pytest.raises(CheckpointError, match="num_experts_per_tok must be at most 6, but is 7"):
        mixed(num_experts_per_tok=7)
    with pytest.raises(UnsupportedModelError, match="mixture of experts"):
        read(num_local_experts=8)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": None}, "no model_type: this is not a Hugging Face model folder"),
        ({"hidden_size": 0}, "hidden_size must be a positive integer, but is 0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, but is 0"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer, but is 'many'"),
        ({"intermediate_size": 1.5}, "intermediate_size must be a positive integer"),
        ({"num_attention_heads": True}, "num_attention_heads must be a positive integer"),
        ({"num_key_value_heads": 3}, r"\(8\) is no multiple of num_key_value_heads \(3\)"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a positive number"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps must be a positive number"),
        (
            {**LFM2, "block_ffn_dim_multiplier": 1e308},
            "block_ffn_dim_multiplier must be a positive number of at most 16,777,216",
        ),
        (
            {**LFM2, "block_ffn_dim_multiplier": 1e-9},
            r"block_ffn_dim_multiplier \(1e-09\) leaves 0 rows of an MLP",
        ),
        ({**LFM2, "intermediate_size": 1}, r"intermediate_size \(1\) leaves 0 rows of an MLP"),
        ({"rope_theta": -1.0}, "rope_theta must be a positive number"),
        ({"rope_scaling": "linear"}, "rope_parameters must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "factor must be a positive number, but is None"),
        (
            {"rope_scaling": {**SCALED, "original_max_position_embeddings": 0}},
            "original_max_position_embeddings must be a positive integer",
        ),
        ({"rope_scaling": {**SCALED, "high_freq_factor": 0}}, "high_freq_factor must be a positive number"),
        ({"rope_scaling": {"type": "longrope"}}, "long_factor must be a list of 16 numbers"),
        (
            {"rope_scaling": {**LONGROPE, "short_factor": [1.0] * 15}},
            "short_factor must be a list of 16 numbers",
        ),
        ({"rope_scaling": {**LONGROPE, "long_factor": [0] * 16}}, "long_factor must be a positive number"),
        ({**PHI3, "partial_rotary_factor": 1.5}, "and 48 of 32 elements of a head cannot be rotated"),
        ({**LFM2, "layer_types": ["conv"]}, "name the kind of each of 3 layers, conv or full_attention"),
        ({**LFM2, "layer_types": None, "model_type": "lfm2_moe"}, "conv or full_attention, but is None"),
        ({**LFM2, "conv_L_cache": 1}, "conv_L_cache must be an integer of 2 or more, but is 1"),
        ({**LFM2, "block_multiple_of": 0}, "block_multiple_of must be a positive integer, but is 0"),
        ({**GRANITE_H, "layer_types": ["mamba"]}, "name the kind of each of 3 layers"),
        (
            {**NEMOTRON_H, "hybrid_override_pattern": "MX"},
            "or a letter of M.*, but hybrid_override_pattern is",
        ),
        ({**NEMOTRON_H, "hybrid_override_pattern": 3}, "but hybrid_override_pattern is 3"),
        ({**NEMOTRON_H, "layers_block_type": [3]}, r"but layers_block_type is \[3\]"),
        ({**GRANITE_H, "mamba_n_heads": 0}, "mamba_n_heads must be a positive integer"),
        ({**GRANITE_H, "mamba_n_groups": 3}, r"mamba_n_heads \(8\) is no multiple of mamba_n_groups \(3\)"),
        (
            {**GRANITE_H, "mamba_d_head": 32},
            r"8\) heads of 32 elements are not mamba_expand times hidden_size",
        ),
        ({**GRANITE_H, "time_step_limit": 3}, "time_step_limit must be two numbers, but is 3"),
        ({**GRANITE_H, "mamba_d_conv": 1}, "mamba_d_conv must be .*, but is 1"),
        ({**PHI3, "partial_rotary_factor": 0.1}, "and 3 of 32 elements of a head cannot be rotated"),
    ],
)
def test_a_broken_config_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        read(**changes)
