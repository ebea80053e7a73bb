"""LFM2 as llama.cpp's converter writes it: short convolutions, and mixtures of experts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]
ARCHITECTURES = ("lfm2", "lfm2moe")
MATRICES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def arrays(weights: Arrays, config: dict[str, Any], architecture: str) -> Arrays:
    """The tensors of a checkpoint by names that the package gguf knows, or by those of the file."""
    found: Arrays = {}
    for name, array in weights.items():
        own = name
        if name.endswith(".conv.conv.weight"):
            array = array.squeeze(1)
        if name == "model.embedding_norm.weight":
            own = "token_embd_norm.weight"
        elif name.endswith(".expert_bias"):
            own = f"blk.{name.split('.')[2]}.exp_probs_b.bias"
        elif ".experts." in name:
            own = name.replace(".feed_forward.", ".mlp.")
            for matrix, usual in MATRICES.items():
                own = own.replace(f".{matrix}.", f".{usual}.")
        found[own] = array
    return found


def metadata(config: dict[str, Any], name: str) -> dict[str, Any]:
    heads = [config["num_key_value_heads"] * (kind != "conv") for kind in config["layer_types"]]
    said = {
        "attention.head_count_kv": heads,
        "shortconv.l_cache": config["conv_L_cache"],
        "feed_forward_length": _mlp(config),
        "expert_count": config.get("num_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "leading_dense_block_count": config.get("num_dense_layers"),
        "expert_gating_func": 2 if name == "lfm2moe" else None,
    }
    return {f"{name}.{key}": value for key, value in said.items()}


def _mlp(config: dict[str, Any]) -> int:
    size: int = config["intermediate_size"]
    if not config.get("block_auto_adjust_ff_dim"):
        return size
    multiple: int = config["block_multiple_of"]
    size = int(config["block_ffn_dim_multiplier"] * int(2 * size / 3))
    return multiple * ((size + multiple - 1) // multiple)
