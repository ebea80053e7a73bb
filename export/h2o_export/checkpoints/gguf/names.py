"""The tensors of a GGUF file that hold a tensor of transformers, where the package gguf does not say so.

Matrices of all experts of a layer are one tensor of the file, and so are their biases.
"""

from __future__ import annotations

import re
from dataclasses import replace

from h2o_export.architecture.config import ModelConfig
from h2o_export.checkpoints.gguf.header import TensorEntry
from h2o_runtime.errors import CheckpointError

_EXPERT = re.compile(
    r"(?:model|backbone)\.layers\.(\d+)\.(?:mlp\.|feed_forward\.|block_sparse_moe\.|mixer\.)?experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\."
    "(weight|bias)"
)
_MATRICES = {"w1": "gate", "w2": "down", "w3": "up"}  # of LFM2
_BOTH = ".ffn_gate_up_exps."  # gates above ups
_IN_LAYER = re.compile(r"(?:model|backbone)\.layers\.(\d+)\.(.+)")
_OWN = {
    "self_attn.sinks": "attn_sinks.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "mamba.dt_bias": "ssm_dt.bias",
    "mixer.dt_bias": "ssm_dt.bias",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}
# Tensors with the rows, or columns, of one layer after the other.
_ROWS, _COLUMNS = "per_layer_model_proj.weight", "per_layer_token_embd.weight"
_OF_ALL = {
    "per_layer_model_projection.weight": _ROWS,
    "embed_tokens_per_layer.weight": _COLUMNS,
}
_AROUND_DRAFT = {
    "merging": "eh_proj",
    "token_norm": "enorm",
    "hidden_norm": "hnorm",
    "norm": "shared_head_norm",
}
# A tensor of a router: its name in transformers, and in the map of the package gguf.
_BIAS = ("e_score_correction_bias", "e_score_correction.bias")


def numbered(name: str, config: ModelConfig) -> str:
    """In a file the draft layer comes after the model's own; what lies around it has names of its own."""
    draft, layer = config.draft, config.layers
    if draft is None:
        return name
    own = {f"{draft.around[module]}.weight": there for module, there in _AROUND_DRAFT.items()}
    if name in own:
        return f"blk.{layer}.nextn.{own[name]}.weight"
    return name.replace(draft.layer, f"model.layers.{layer}.") if name.startswith(draft.layer) else name


def mapped(name: str) -> str:
    """gguf's name of a tensor that transformers names `name`."""
    return name.replace(*_BIAS)


def own_name(name: str, tensors: dict[str, TensorEntry]) -> str | None:
    """The tensor of the file that holds `name` and that the package gguf does not name; else None."""
    if expert := _EXPERT.fullmatch(name):
        matrix = _matrix(expert)
        both = f"blk.{expert[1]}{_BOTH}{expert[4]}"
        alone = f"blk.{expert[1]}.ffn_{matrix}_exps.{expert[4]}"
        return both if matrix != "down" and both in tensors else alone
    if place := _IN_LAYER.fullmatch(name):
        module = _OWN.get(place[2])
        return _OF_ALL.get(place[2]) if module is None else f"blk.{place[1]}.{module}"
    return None


def inside(name: str, stored: TensorEntry, experts: int, layers: int) -> TensorEntry:
    """Where `name` is inside a tensor of all experts, [E, out, in] or [E, out], or of all layers; else `stored`."""
    if expert := _EXPERT.fullmatch(name):
        return _one_expert(expert, stored, experts)
    place = _IN_LAYER.fullmatch(name)
    if place is not None and stored.name == _ROWS:
        return stored.rows(int(place[1]), layers)
    if place is not None and stored.name == _COLUMNS:
        return stored.columns(int(place[1]), layers)
    return stored


def _one_expert(expert: re.Match[str], stored: TensorEntry, experts: int) -> TensorEntry:
    if stored.shape[:1] != (experts,):
        raise CheckpointError(
            f"{stored.path}: '{stored.name}' has the shape {list(stored.shape)}, and its metadata say {experts} "
            "experts; download it again"
        )
    rows = replace(stored.rows(int(expert[2]), experts), shape=stored.shape[1:])
    return rows.rows(("gate", "up").index(_matrix(expert)), 2) if _BOTH in stored.name else rows


def _matrix(expert: re.Match[str]) -> str:
    return _MATRICES.get(expert[3], expert[3].removesuffix("_proj"))
