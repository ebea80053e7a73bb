"""Gemma 4 as llama.cpp's converter writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]
ARCHITECTURES = ("gemma4",)
_OWN = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}


def arrays(weights: Arrays, config: dict[str, Any], architecture: str) -> Arrays:
    """The tensors of a checkpoint by names that gguf knows, or by those of the file; and which pairs turn."""
    found: Arrays = {}
    for name, array in weights.items():
        if name.endswith(("layer_scalar", "experts.gate_up_proj", "experts.down_proj")):
            name = f"{name}.weight"
        layer, _, own = name.removeprefix("model.layers.").partition(".")
        found[f"blk.{layer}.{_OWN[own]}" if own in _OWN else name] = array
    pairs = _heads(config, "full_attention")[1] // 2
    turning = int(pairs * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    return found | {"rope_freqs.weight": np.array([1.0] * turning + [1e30] * (pairs - turning), np.float32)}


def metadata(config: dict[str, Any], name: str) -> dict[str, Any]:
    types, shared = config["layer_types"], config["num_kv_shared_layers"]
    kv_heads = [_heads(config, kind)[0] for kind in types]
    size, local = (_heads(config, kind)[1] for kind in ("full_attention", "sliding_attention"))
    width = config["intermediate_size"]
    wider = [width] * (len(types) - shared) + [2 * width] * shared
    said = {
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.key_length_swa": local,
        "attention.value_length_swa": local,
        "attention.head_count_kv": kv_heads if len({*kv_heads}) > 1 else kv_heads[0],
        "attention.shared_kv_layers": shared,
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in types],
        "feed_forward_length": wider if config["use_double_wide_mlp"] else width,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "rope.dimension_count": size,
        "rope.dimension_count_swa": local,
        "rope.freq_base": config["rope_parameters"]["full_attention"]["rope_theta"],
        "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "expert_count": config["num_experts"],
        "expert_used_count": config["top_k_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }
    return {f"{name}.{key}": value for key, value in said.items()}


def _heads(config: dict[str, Any], kind: str) -> tuple[int, int]:
    """Key/value heads, and their size, of layers of a kind."""
    own = config["per_layer_config"].get(str(config["layer_types"].index(kind)), {})
    return own.get("num_key_value_heads", config["num_key_value_heads"]), own.get(
        "head_dim", config["head_dim"]
    )
