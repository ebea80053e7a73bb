"""DeepSeek models in GGUF, architecture `deepseek2`: latent attention, and experts with stacked matrices.

Facts are those of llama.cpp's converter. Newer files have W_uk and W_uv as separate tensors, older ones the
checkpoint's `kv_b_proj`. Queries and keys are in transformers' order, with rotated neighbours side by side.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from gguf import ExpertGatingFuncType
from numpy.typing import NDArray

from h2o_export.checkpoints.gguf.header import Header, TensorEntry
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

NAME = "deepseek2"
_BOTH = re.compile(r"model\.layers\.(\d+)\.self_attn\.kv_b_proj\.weight")

# (key after the architecture's name, key of config.json)
_EXPERTS = (
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("leading_dense_block_count", "first_k_dense_replace"),
)


def latent_config(header: Header, raw: dict[str, Any], value: Callable[[str], Any]) -> dict[str, Any]:
    """The `config.json` keys of such layers, besides `raw`. Raises CheckpointError for missing metadata."""
    rotated = _needed(header, value, "rope.dimension_count")
    key = value("attention.key_length_mla") or _needed(header, value, "attention.key_length")
    if not isinstance(key, int) or not isinstance(rotated, int) or key <= rotated:
        raise CheckpointError(
            f"{header.path}: keys of {key} elements, {rotated} of them rotated, are impossible; download it again"
        )
    return {
        "num_key_value_heads": raw["num_attention_heads"],
        "num_nextn_predict_layers": 0,  # block_count is of all layers
        "kv_lora_rank": _needed(header, value, "attention.kv_lora_rank"),
        "q_lora_rank": value("attention.q_lora_rank"),
        "qk_nope_head_dim": key - rotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": value("attention.value_length_mla") or _needed(header, value, "attention.value_length"),
        **_experts(header, raw, value),
    }


def _experts(header: Header, raw: dict[str, Any], value: Callable[[str], Any]) -> dict[str, Any]:
    function = value("expert_gating_func") or ExpertGatingFuncType.SOFTMAX
    if function not in (ExpertGatingFuncType.SOFTMAX, ExpertGatingFuncType.SIGMOID):
        raise UnsupportedModelError(
            f"{header.path}: scores of experts by function {function} are not supported"
        )
    softmax = function == ExpertGatingFuncType.SOFTMAX
    said = {"model_type": "deepseek_v2" if softmax else "deepseek_v3"}
    if not value("expert_count"):
        return said | {"first_k_dense_replace": raw["num_hidden_layers"]}
    groups = value("expert_group_count") or 1
    method = ("group_limited_greedy" if groups > 1 else "greedy") if softmax else "noaux_tc"
    return {
        **said,
        **{word: _needed(header, value, key) for key, word in _EXPERTS},
        "n_routed_experts": value("expert_count"),
        "n_group": groups,
        "topk_group": value("expert_group_used_count") or 1,
        "topk_method": method,
        "norm_topk_prob": bool(value("expert_weights_norm")),
        "routed_scaling_factor": value("expert_weights_scale") or 1.0,
    }


def yarn_factors(value: Callable[[str], Any]) -> dict[str, Any]:
    """llama.cpp's YaRN does not scale cosines here; logits grow with the logarithm of the context."""
    multiplier = value("rope.scaling.yarn_log_multiplier") or 0.0
    return {"attention_factor": 1.0, "mscale_all_dim": 10 * multiplier}


def own_names(name: str, tensors: dict[str, TensorEntry]) -> tuple[str, ...] | None:
    """The two tensors of the file that hold `kv_b_proj` where it is not stored on its own; else None."""
    both = _BOTH.fullmatch(name)
    if both and f"blk.{both[1]}.attn_kv_b.weight" not in tensors:
        return f"blk.{both[1]}.attn_k_b.weight", f"blk.{both[1]}.attn_v_b.weight"
    return None


def is_both(name: str) -> bool:
    """Whether transformers' tensor holds W_uk and W_uv."""
    return _BOTH.fullmatch(name) is not None


def joined(keys: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """W_uk [H, r, dn] and W_uv [H, dv, r] combined as in transformers: [H (dn + dv), r]."""
    both = np.concatenate((keys.swapaxes(1, 2), values), axis=1)
    return both.reshape(-1, values.shape[2])


def joined_shape(keys: tuple[int, ...], values: tuple[int, ...]) -> tuple[int, ...]:
    """Of `joined`; empty if the two do not match."""
    fits = len(keys) == len(values) == 3 and (keys[0], keys[1]) == (values[0], values[2])
    return (keys[0] * (keys[2] + values[1]), keys[1]) if fits else ()


def _needed(header: Header, value: Callable[[str], Any], key: str) -> Any:
    found = value(key)
    if found is None:
        raise CheckpointError(f"{header.path}: its metadata lack {NAME}.{key}; download it again")
    return found
