"""The tensors of a GGUF file that hold a tensor of transformers, where the package gguf does not say so.

Matrices of all experts of a layer are one tensor of the file, and so are their biases.
"""

from __future__ import annotations

import re
from dataclasses import replace

from h2o_export.checkpoints.gguf.header import TensorEntry
from h2o_runtime.errors import CheckpointError

_EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")
_SINKS = re.compile(r"model\.layers\.(\d+)\.self_attn\.sinks")
# A tensor of a router: its name in transformers, and in the map of the package gguf.
_BIAS = ("e_score_correction_bias", "e_score_correction.bias")


def mapped(name: str) -> str:
    """gguf's name of a tensor that transformers names `name`."""
    return name.replace(*_BIAS)


def own_name(name: str) -> str | None:
    """The tensor of the file that holds `name` and that the package gguf does not name; else None."""
    if expert := _EXPERT.fullmatch(name):
        return f"blk.{expert[1]}.ffn_{expert[3]}_exps.{expert[4]}"
    if sinks := _SINKS.fullmatch(name):
        return f"blk.{sinks[1]}.attn_sinks.weight"
    return None


def one_expert(name: str, stored: TensorEntry, experts: int) -> TensorEntry:
    """Where the expert's matrix or bias `name` is inside those of all experts, [E, out, in] or [E, out]."""
    expert = _EXPERT.fullmatch(name)
    if expert is None:
        return stored
    if stored.shape[:1] != (experts,):
        raise CheckpointError(
            f"{stored.path}: '{stored.name}' has {stored.shape[0]} experts, and its metadata say {experts}; "
            "download it again"
        )
    length = stored.length // experts
    offset = stored.offset + int(expert[2]) * length
    return replace(stored, shape=stored.shape[1:], offset=offset, length=length)
