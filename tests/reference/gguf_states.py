"""Qwen3-Next and Qwen3.5 as llama.cpp's converter writes them: layers with a state, and shared experts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]
ARCHITECTURES = ("qwen3next", "qwen35", "qwen35moe")


def arrays(weights: Arrays, config: dict[str, Any], architecture: str) -> Arrays:
    """The tensors of a checkpoint by names that the package gguf knows, or by those of the file."""
    found: Arrays = {}
    for given, array in weights.items():
        name = _numbered(given, config["num_hidden_layers"])
        if architecture != "qwen3next" and ".linear_attn." in name:
            array = _dealt(name, array, config)
        layer, _, own = name.partition(".linear_attn.")
        if own == "A_log":
            array = -np.exp(array)
        elif own == "dt_bias":
            name = f"{layer}.linear_attn.dt_proj.bias"
        elif own == "conv1d.weight" or name.endswith("shared_expert_gate.weight"):
            array = array.squeeze()
        elif name.endswith("norm.weight") and own != "norm.weight":
            array = array + 1
        if own == "in_proj_qkvz.weight":
            block = f"blk.{layer.removeprefix('model.layers.')}"
            found[f"{block}.attn_qkv.weight"], found[f"{block}.attn_gate.weight"] = _apart(array, config)
        else:
            found[name] = array
    return found


def _numbered(name: str, layers: int) -> str:
    """The draft layer comes after the others."""
    around = {
        "mtp.fc.weight": "eh_proj",
        "mtp.pre_fc_norm_embedding.weight": "enorm",
        "mtp.pre_fc_norm_hidden.weight": "hnorm",
        "mtp.norm.weight": "shared_head_norm",
    }
    if name in around:
        return f"blk.{layers}.nextn.{around[name]}.weight"
    return name.replace("mtp.layers.0.", f"model.layers.{layers}.")


def metadata(config: dict[str, Any], name: str) -> dict[str, Any]:
    linear = [kind == "linear_attention" for kind in config["layer_types"]]
    usual = linear == [(layer + 1) % 4 != 0 for layer in range(len(linear))]
    drafting = config.get("mtp_num_hidden_layers", 0)
    said = {
        "block_count": config["num_hidden_layers"] + drafting,
        "nextn_predict_layers": drafting or None,
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "full_attention_interval": 4,
        "attention.recurrent_layers": None if usual else linear,
        "rope.dimension_sections": [2, 1, 1, 0] if name != "qwen3next" else None,
        "expert_count": config.get("num_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
    }
    without_dense = {f"{name}.feed_forward_length": None} if name == "qwen35moe" else {}
    return {f"{name}.{key}": value for key, value in said.items()} | without_dense


def _dealt(name: str, array: NDArray[np.float32], config: dict[str, Any]) -> NDArray[np.float32]:
    """Heads of values one for each head of keys, and then the next one for each."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    heads = [key * (values // keys) + own for own in range(values // keys) for key in range(keys)]
    size, own = config["linear_value_head_dim"], name.partition(".linear_attn.")[2].split(".")[0]

    def reordered(rows: NDArray[np.float32], size: int) -> NDArray[np.float32]:
        return np.concatenate([rows[head * size : (head + 1) * size] for head in heads])

    if own in ("in_proj_qkv", "conv1d"):
        before = 2 * keys * config["linear_key_head_dim"]
        return np.concatenate((array[:before], reordered(array[before:], size)))
    if own == "out_proj":
        return np.ascontiguousarray(reordered(array.T, size).T)
    if own == "norm":
        return array
    return reordered(array, size if own == "in_proj_z" else 1)


def _apart(rows: NDArray[np.float32], config: dict[str, Any]) -> tuple[NDArray[np.float32], ...]:
    """q, k and v of all heads, and z; a checkpoint has the four of one head of keys after those of the other."""
    keys, size = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    heads = [np.split(head, np.cumsum([size, size, values])) for head in np.split(rows, keys)]
    q, k, v, z = (np.concatenate([head[part] for head in heads]) for part in range(4))
    return np.concatenate((q, k, v)), z
