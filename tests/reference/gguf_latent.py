"""GGUF files of tiny models with latent attention, as llama.cpp's converter would write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from tests.reference.gguf_files import add, quantized, tokenizer_metadata

Arrays = dict[str, NDArray[np.float32]]


def write(checkpoint: Path, path: Path, kind: Kind = Kind.F32, *, apart: bool = True) -> Path:
    """`apart`: W_uk and W_uv are tensors of their own, and metadata of absorbed attention, as in newer files."""
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "deepseek2")
    for key, value in (_metadata(config, apart) | tokenizer_metadata(checkpoint)).items():
        if value is not None:
            add(writer, key, value)
    for name, array in _tensors(checkpoint, config, apart).items():
        fits = array.ndim >= 2 and array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        plain = kind == Kind.F32 or not fits or "gate_inp" in name
        writer.add_tensor(name, array if plain else quantized(array, kind), raw_dtype=None if plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(checkpoint: Path, config: dict[str, Any], apart: bool) -> Arrays:
    opened = open_checkpoint(str(checkpoint))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, config["num_hidden_layers"])
    found: Arrays = {}
    for name, shape in checkpoint_tensors(opened.plan).items():
        array = opened.tensor(name, shape).float().numpy()
        layer = name.split(".")[2] if name.startswith("model.layers.") else ""
        if ".experts." in name:
            _, _, expert, which, _ = name.rsplit(".", 4)
            whole = f"blk.{layer}.ffn_{which.removesuffix('_proj')}_exps.weight"
            found.setdefault(whole, np.empty((config["n_routed_experts"], *shape), np.float32))[
                int(expert)
            ] = array
        elif apart and name.endswith("kv_b_proj.weight"):
            both = array.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
            keys, values = np.split(both, [config["qk_nope_head_dim"]], axis=1)
            found[f"blk.{layer}.attn_k_b.weight"] = np.ascontiguousarray(keys.swapaxes(1, 2))
            found[f"blk.{layer}.attn_v_b.weight"] = np.ascontiguousarray(values)
        else:
            name = name.replace("e_score_correction_bias", "e_score_correction.bias")
            own = names.get_name(name, (".weight", ".bias"))
            assert own is not None, name
            found[own] = array
    return found


def _metadata(config: dict[str, Any], apart: bool) -> dict[str, Any]:
    rope, rotated = config["rope_parameters"], config["qk_rope_head_dim"]
    key, value, rank = config["qk_nope_head_dim"] + rotated, config["v_head_dim"], config["kv_lora_rank"]
    yarn = rope["rope_type"] == "yarn"
    said = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "vocab_size": config["vocab_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": 1 if apart else config["num_attention_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rotated if apart else key,
        "attention.value_length": rank if apart else value,
        "attention.key_length_mla": key if apart else None,
        "attention.value_length_mla": value if apart else None,
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": rotated,
        "rope.scaling.type": "yarn" if yarn else None,
        "rope.scaling.factor": float(rope["factor"]) if yarn else None,
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"] if yarn else None,
        "rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"] if yarn else None,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": 2 if config["model_type"] == "deepseek_v3" else 1,
        "expert_group_count": config["n_group"] if config.get("topk_method") != "greedy" else None,
        "expert_group_used_count": config["topk_group"] if config.get("topk_method") != "greedy" else None,
    }
    return {f"deepseek2.{key}": value for key, value in said.items()}
