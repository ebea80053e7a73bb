"""Layers of Mamba-2 in GGUF: Granite 4 H (`granitehybrid`), Nemotron-H (`nemotron_h`, `nemotron_h_moe`).

Facts are those of llama.cpp's converter. It stores -exp(A_log), the weights of a norm with one row for each group,
and gates apart from ups. A block without heads of keys is Mamba-2, or, if it has a size of MLPs, an MLP alone.
"""

from __future__ import annotations

import re
from typing import Any

from h2o_export.architecture.families.family import FULL
from h2o_export.architecture.families.nemotron_h import DENSE, MIXED, STATE, TYPES
from h2o_export.checkpoints.gguf.header import Metadata, TensorEntry
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

GRANITE_REQUIRED = (
    ("ssm.conv_kernel", "mamba_d_conv"),
    ("ssm.state_size", "mamba_d_state"),
    ("ssm.group_count", "mamba_n_groups"),
    ("ssm.time_step_rank", "mamba_n_heads"),
)
NEMOTRON_REQUIRED = (
    ("ssm.conv_kernel", "conv_kernel"),
    ("ssm.state_size", "ssm_state_size"),
    ("ssm.group_count", "n_groups"),
    ("ssm.time_step_rank", "mamba_num_heads"),
    ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
)
MIXTURE_REQUIRED = (
    ("expert_count", "n_routed_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"),
)
_SHARED = re.compile(r"model\.layers\.(\d+)\.shared_mlp\.(input|output)_linear\.weight")


def granite_config(value: Metadata) -> dict[str, Any]:
    """The `config.json` keys of Granite 4 H, besides those of `GRANITE_REQUIRED` and of Granite's multipliers.

    Raises CheckpointError and UnsupportedModelError, as all functions here.
    """
    heads = _by_block(value, "attention.head_count_kv")
    hidden, inner = value.number("embedding_length"), value.number("ssm.inner_size")
    if not hidden or inner % hidden:
        raise UnsupportedModelError(
            f"{value.header.path}: states of {inner} elements for a hidden size of {hidden} ({value.name}."
            "ssm.inner_size) are not supported: it must be a multiple"
        )
    rotated = value("rope.scaling.finetuned")  # a switch in this family, and on where a file says nothing
    return {
        "num_key_value_heads": _heads_of_keys(value, heads),
        "layer_types": [FULL if count else STATE for count in heads],
        "position_embedding_type": "nope" if rotated is False else "rope",
        "mamba_expand": inner // hidden,
        "mamba_d_head": _head_of_state(value),
        "mamba_conv_bias": _has(value, "ssm_conv1d.bias"),
        "mamba_proj_bias": _has(value, "ssm_in.bias"),
        "num_local_experts": value.number("expert_count"),
        "num_experts_per_tok": value.number("expert_used_count"),
        "shared_intermediate_size": value("expert_shared_feed_forward_length")
        or value("feed_forward_length"),
    }


def nemotron_config(value: Metadata) -> dict[str, Any]:
    """The same of Nemotron-H, besides those of `NEMOTRON_REQUIRED`."""
    heads, sizes = (_by_block(value, key) for key in ("attention.head_count_kv", "feed_forward_length"))
    if value.number("nextn_predict_layers"):
        raise UnsupportedModelError(
            f"{value.header.path}: a block that drafts tokens ({value.name}.nextn_predict_layers) is not supported"
            "; convert the model's folder with --no-mtp"
        )
    without_keys = MIXED if value.number("expert_count") else DENSE
    kinds = [
        FULL if count else without_keys if size else STATE for count, size in zip(heads, sizes, strict=True)
    ]
    return {
        "num_key_value_heads": _heads_of_keys(value, heads),
        TYPES: kinds,
        "intermediate_size": max(sizes) or None,
        "mamba_head_dim": _head_of_state(value),
        "use_conv_bias": _has(value, "ssm_conv1d.bias"),
        "use_bias": _has(value, "ssm_in.bias"),
    }


def nemotron_mixture_config(value: Metadata) -> dict[str, Any]:
    """The same with mixtures. Older files say how many groups of experts there are, and not how many count."""
    groups = value.number("expert_group_count") or 1
    if groups > 1 and value("expert_group_used_count") is None:
        raise CheckpointError(
            f"{value.header.path}: its experts are in {groups} groups, and its metadata lack "
            f"{value.name}.expert_group_used_count; convert the model's folder, or export that instead"
        )
    return {
        **nemotron_config(value),
        "n_group": groups,
        "topk_group": value("expert_group_used_count") or 1,
        "norm_topk_prob": bool(value("expert_weights_norm")),
        "routed_scaling_factor": value("expert_weights_scale") or 1.0,
        "moe_latent_size": value("moe_latent_size"),
    }


def own_names(name: str, tensors: dict[str, TensorEntry]) -> tuple[str, ...] | None:
    """The tensors of the file with Granite's MLP, whose gates and ups are one tensor in transformers; else None."""
    place = _SHARED.fullmatch(name)
    if place is None:
        return None
    shared = "_shexp" if f"blk.{place[1]}.ffn_down_shexp.weight" in tensors else ""
    matrices = ("gate", "up") if place[2] == "input" else ("down",)
    return tuple(f"blk.{place[1]}.ffn_{matrix}{shared}.weight" for matrix in matrices)


def _by_block(value: Metadata, key: str) -> list[int]:
    """A number for every block."""
    found, blocks = value(key), value.number("block_count")
    if not isinstance(found, list) or len(found) != blocks or not any(found):
        raise CheckpointError(
            f"{value.header.path}: {value.name}.{key} must be a number for each of {blocks} blocks, some of them "
            "not 0; download it again"
        )
    return found


def _heads_of_keys(value: Metadata, heads: list[int]) -> int:
    if len({*heads} - {0}) > 1:
        raise UnsupportedModelError(
            f"{value.header.path}: layers with different numbers of heads of keys ({value.name}."
            f"attention.head_count_kv = {heads}) are not supported"
        )
    return max(heads)


def _head_of_state(value: Metadata) -> int:
    inner, heads = value.number("ssm.inner_size"), value.number("ssm.time_step_rank")
    if not heads or inner % heads:
        raise CheckpointError(
            f"{value.header.path}: {inner} elements ({value.name}.ssm.inner_size) are no multiple of {heads} heads "
            f"({value.name}.ssm.time_step_rank); download it again"
        )
    return inner // heads


def _has(value: Metadata, tensor: str) -> bool:
    return any(name.endswith(tensor) for name in value.header.tensors)
