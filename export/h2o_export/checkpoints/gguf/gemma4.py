"""Gemma 4 in GGUF, architecture `gemma4`. Facts are those of llama.cpp's converter.

Metadata of heads are for layers without a window, and those that end with `_swa` for layers with one. The experts'
matrices of gates and ups are one tensor, and so are the embeddings of all layers.
"""

from __future__ import annotations

from typing import Any

from h2o_export.architecture.families.family import FULL, SLIDING
from h2o_export.checkpoints.gguf.header import Metadata
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

EMBEDDINGS = "per_layer_token_embd.weight"


def gemma4_config(value: Metadata) -> dict[str, Any]:
    """The `config.json` keys of such layers. Raises CheckpointError and UnsupportedModelError."""
    windowed, layers = value("attention.sliding_window_pattern"), value.number("block_count")
    if not isinstance(windowed, list) or len(windowed) != layers or all(windowed):
        raise CheckpointError(
            f"{value.header.path}: gemma4.attention.sliding_window_pattern must say for each of {layers} layers "
            "whether it has a window, and at least one must have none; download it again"
        )
    rotated, size = value("rope.dimension_count_swa"), value("attention.key_length_swa")
    if (rotated or size) != size:
        raise UnsupportedModelError(
            f"{value.header.path}: partial rotary embedding in layers with a window ({rotated} of {size} elements) "
            "is not supported"
        )
    full = windowed.index(False)
    shared = value.number("attention.shared_kv_layers")
    return {
        "layer_types": [SLIDING if slides else FULL for slides in windowed],
        "head_dim": size,
        "global_head_dim": value("attention.key_length"),
        "num_key_value_heads": _of(value("attention.head_count_kv"), windowed, True),
        "num_global_key_value_heads": _of(value("attention.head_count_kv"), windowed, False),
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in value.header.tensors,
        "num_kv_shared_layers": shared,
        # The converter omits what config.json has not; llama.cpp then caps logits at 30.
        "final_logit_softcapping": value("final_logit_softcapping") or None,
        **_mlp(value, layers, shared),
        **_layer_embedding(value),
        **_experts(value),
    }


def _of(given: Any, windowed: list[bool], window: bool) -> Any:
    """One number, or that of the first layer with a window or without one."""
    if not isinstance(given, list):
        return given
    return next((size for size, slides in zip(given, windowed, strict=False) if slides == window), None)


def _mlp(value: Metadata, layers: int, shared: int) -> dict[str, Any]:
    """The size of all MLPs, or those of layers without keys are twice as wide."""
    sizes = value("feed_forward_length")
    if not isinstance(sizes, list):
        return {}
    distinct = layers - shared
    if not distinct or len(sizes) != layers or sizes != [sizes[0]] * distinct + [2 * sizes[0]] * shared:
        raise UnsupportedModelError(
            f"{value.header.path}: MLPs of {sizes} elements are not supported: only the last {shared} layers, "
            "which have no keys, may be twice as wide"
        )
    return {"intermediate_size": sizes[0], "use_double_wide_mlp": True}


def _layer_embedding(value: Metadata) -> dict[str, Any]:
    size = value("embedding_length_per_layer_input") or 0
    stored = value.header.tensors.get(EMBEDDINGS)
    if size and (stored is None or len(stored.shape) != 2):
        raise CheckpointError(f"{value.header.path}: no matrix '{EMBEDDINGS}' in it; download it again")
    rows = {} if stored is None else {"vocab_size_per_layer_input": stored.shape[0]}
    return {"hidden_size_per_layer_input": size, **rows}


def _experts(value: Metadata) -> dict[str, Any]:
    if not value("expert_count"):
        return {}
    return {
        "enable_moe_block": True,
        "num_experts": value("expert_count"),
        "top_k_experts": value("expert_used_count"),
        "moe_intermediate_size": value("expert_feed_forward_length"),
    }
