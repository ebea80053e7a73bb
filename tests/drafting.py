"""Checkpoints of Qwen3.5 with a layer that drafts: a random one, and one that is nearly always right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from tests.family_models import MODELS, save

ADDED = ("o_proj.weight", "out_proj.weight", "down_proj.weight")  # to the residual stream


def save_drafting(folder: Path, right: float | None = None, tied: bool = False) -> Path:
    """A checkpoint with a draft layer, whose weights are random.

    right: layers add this share of what they would, to the embedding of a token; and so does the draft layer, whose
    input is that embedding. The less it is, the likelier both predict the same.
    """
    family, settings = MODELS["qwen3_5"]
    save(folder, "drafting", {"drafting": (family, {**settings, "tie_word_embeddings": tied})})
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "mtp_num_hidden_layers": 1}))
    file = folder / "model.safetensors"
    tensors = load_file(file)
    draw = torch.Generator().manual_seed(5)
    shapes = {name: shape for name, shape in _named(folder).items() if name.startswith("mtp.")}
    for name, shape in shapes.items():
        spread = 0.1 if len(shape) == 1 else shape[1] ** -0.5
        tensors[name] = spread * torch.randn(shape, generator=draw)
    if right is not None:
        _agree(tensors, right)
    save_file(tensors, file, {"format": "pt"})
    return folder


def _named(folder: Path) -> dict[str, tuple[int, ...]]:
    from dataclasses import replace

    return checkpoint_tensors(replace(open_checkpoint(str(folder)).config, drafts=True))


def _agree(tensors: dict[str, Any], share: float) -> None:
    for name, tensor in tensors.items():
        if name.endswith(ADDED):
            tensor *= share
    hidden = len(tensors["mtp.norm.weight"])
    tensors["mtp.fc.weight"] = torch.cat((torch.eye(hidden), torch.zeros(hidden, hidden)), dim=1)
    tensors["mtp.pre_fc_norm_embedding.weight"] = torch.zeros(hidden)
    tensors["mtp.norm.weight"] = tensors["model.norm.weight"].clone()
