"""Layers with a state in GGUF: Qwen3-Next (`qwen3next`) and Qwen3.5 (`qwen35`, `qwen35moe`).

Facts are those of llama.cpp's converter. It stores -exp(A_log). Qwen3-Next's queries, keys and values are apart
from z; older files have them as transformers does. In Qwen3.5 it deals heads of values to the heads of keys like
cards: those that share keys are side by side in transformers, and far apart in the file.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_export.architecture.delta import DeltaConfig
from h2o_export.architecture.families.family import FULL
from h2o_export.architecture.families.qwen_delta import LINEAR
from h2o_export.checkpoints.gguf.header import Metadata, TensorEntry

DEALT = ("qwen35", "qwen35moe")  # architectures whose heads of values are
REQUIRED = (
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
)
_STATE = re.compile(r"model\.layers\.(\d+)\.linear_attn\.(\w+)\b.*")
_FUSED = "in_proj_qkvz"
_BEHIND_KEYS = ("in_proj_qkv", "conv1d")  # their rows of values come after those of queries and keys
_ONE_A_HEAD = ("in_proj_a", "in_proj_b", "A_log", "dt_bias")


def delta_config(value: Metadata) -> dict[str, Any]:
    """The `config.json` keys of such layers, besides those of `REQUIRED`."""
    inner, heads = value("ssm.inner_size"), value("ssm.time_step_rank")
    whole = isinstance(inner, int) and isinstance(heads, int) and heads > 0 and inner % heads == 0
    layers, more = value.number("block_count"), value.number("nextn_predict_layers")
    said = {
        "linear_value_head_dim": inner // heads if whole else inner,
        "num_hidden_layers": layers - more,
        "num_nextn_predict_layers": more,
        "mtp_num_hidden_layers": more,
        "full_attention_interval": value("full_attention_interval") or 4,
    }
    recurrent = value("attention.recurrent_layers")
    if isinstance(recurrent, list):
        said["layer_types"] = [
            LINEAR if linear else FULL for linear in recurrent[: said["num_hidden_layers"]]
        ]
    return said


def own_names(name: str, tensors: dict[str, TensorEntry]) -> tuple[str, ...] | None:
    """The two tensors of the file whose rows are those of Qwen3-Next's q, k, v and z; else None."""
    place = _STATE.fullmatch(name)
    if place is None or place[2] != _FUSED or f"blk.{place[1]}.ssm_in.weight" in tensors:
        return None
    return f"blk.{place[1]}.attn_qkv.weight", f"blk.{place[1]}.attn_gate.weight"


def row_order(name: str, delta: DeltaConfig, dealt: bool, tensors: int) -> NDArray[np.int64] | None:
    """Where the file has each row of transformers' tensor; None: in its place. `tensors` of the file are joined."""
    place = _STATE.fullmatch(name)
    if place is None:
        return None
    if tensors > 1:
        inverse: NDArray[np.int64] = delta.by_key_head(place[2]).argsort().numpy()
        return inverse
    if not dealt:
        return None
    if place[2] in _ONE_A_HEAD:
        return _dealt(delta, 1)
    if place[2] == "in_proj_z":
        return _dealt(delta, delta.value_size)
    if place[2] in _BEHIND_KEYS:
        before = 2 * delta.keys
        return np.concatenate((np.arange(before), before + _dealt(delta, delta.value_size)))
    return None


def column_order(name: str, delta: DeltaConfig, dealt: bool) -> NDArray[np.int64] | None:
    """The same of columns, which are heads of values in the output projection."""
    return _dealt(delta, delta.value_size) if dealt and name.endswith("linear_attn.out_proj.weight") else None


def _dealt(delta: DeltaConfig, size: int) -> NDArray[np.int64]:
    """Where the file has each of transformers' elements of all heads of values, `size` of each head."""
    there = np.arange(delta.value_heads * size).reshape(-1, delta.key_heads, size)
    order: NDArray[np.int64] = there.swapaxes(0, 1).reshape(-1)
    return order
