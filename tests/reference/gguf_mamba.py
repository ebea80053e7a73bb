"""Granite 4 H and Nemotron-H as llama.cpp's converter writes them: layers of Mamba-2, blocks of one module."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]
ARCHITECTURES = ("granitehybrid", "nemotron_h", "nemotron_h_moe")
MLPS = {"input": ("gate", "up"), "output": ("down",)}


def arrays(weights: Arrays, config: dict[str, Any], architecture: str) -> Arrays:
    """The tensors of a checkpoint by names that the package gguf knows, or by those of the file."""
    found: Arrays = {}
    for name, array in weights.items():
        block = f"blk.{name.split('.')[2]}" if ".layers." in name else ""
        module = name.rpartition(".")[0].rpartition(".")[2]
        if name.endswith(".A_log"):
            found[name] = -np.exp(array)[:, None]
        elif name.endswith((".mamba.D", ".mixer.D")):
            found[name] = array[:, None]
        elif name.endswith(".dt_bias"):
            found[f"{block}.ssm_dt.bias"] = array
        elif name.endswith(".e_score_correction_bias"):
            found[f"{block}.exp_probs_b.bias"] = array
        elif module == "conv1d" and array.ndim > 1:
            found[name] = array.squeeze(1)
        elif name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
            found[name] = array.reshape(config.get("mamba_n_groups") or config["n_groups"], -1)
        elif ".shared_mlp." in name:
            found |= _mlp(
                block, array, module.partition("_")[0], "_shexp" * bool(config["num_local_experts"])
            )
        elif ".block_sparse_moe." in name and module != "layer":
            found |= _mlp(block, array, module.partition("_")[0], "_exps")
        else:
            found[re.sub(r"backbone(.+)\.mixer\.experts", r"model\1.mlp.experts", name)] = array
    return found


def metadata(config: dict[str, Any], name: str) -> dict[str, Any]:
    said = _granite(config) if name == "granitehybrid" else _nemotron(config, name)
    return {f"{name}.{key}": value for key, value in said.items()}


def _granite(config: dict[str, Any]) -> dict[str, Any]:
    full = [kind == "full_attention" for kind in config["layer_types"]]
    mixed = config["num_local_experts"] > 0
    return {
        "attention.head_count_kv": [config["num_key_value_heads"] * one for one in full],
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
        "feed_forward_length": config["intermediate_size" if mixed else "shared_intermediate_size"],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"] if mixed else 0,
        "rope.scaling.finetuned": config["position_embedding_type"] == "rope",
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
    }


def _nemotron(config: dict[str, Any], name: str) -> dict[str, Any]:
    kinds, mixed = config["layers_block_type"], name == "nemotron_h_moe"
    size = config["moe_intermediate_size" if mixed else "intermediate_size"]
    said = {
        "attention.head_count_kv": [config["num_key_value_heads"] * (k == "full_attention") for k in kinds],
        "block_count": len(kinds),
        "feed_forward_length": [size * (kind in ("mlp", "moe")) for kind in kinds],
        **{f"attention.layer_norm{rms}_epsilon": config["layer_norm_epsilon"] for rms in ("", "_rms")},
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"],
        "ssm.time_step_rank": config["mamba_num_heads"],
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
    }
    if not mixed:
        return said
    return said | {
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": size,
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_shared_count": 1,
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
    }


def _mlp(block: str, array: NDArray[np.float32], part: str, kind: str) -> Arrays:
    """Gates and ups of an MLP apart, or of all experts [E, out, in]."""
    names = MLPS[part]
    rows = [np.ascontiguousarray(own) for own in np.split(array, len(names), axis=-2)]
    return {f"{block}.ffn_{one}{kind}.weight": own for one, own in zip(names, rows, strict=True)}
