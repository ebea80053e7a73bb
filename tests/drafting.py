"""Checkpoints with a layer that drafts: a random one, and one that is nearly always right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from h2o_export.architecture.config import ModelConfig
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.plan import Plan
from h2o_runtime import Generator
from tests import latent_models
from tests.family_models import MODELS, VOCAB, save

ADDED = ("o_proj.weight", "out_proj.weight", "down_proj.weight")  # to the residual stream
_LATENT = {**latent_models.EXPERTS, "vocab_size": VOCAB, "max_position_embeddings": 4096}
# The settings of a model, and what says in its config.json that it has a draft layer.
DRAFTING: dict[str, tuple[str, dict[str, Any], str]] = {
    "qwen3_5": (*MODELS["qwen3_5"], "mtp_num_hidden_layers"),
    "qwen3_5_moe": (*MODELS["qwen3_5_moe"], "mtp_num_hidden_layers"),
    "deepseek_v3": ("deepseek_v3", {**latent_models.SIZES, **_LATENT}, "num_nextn_predict_layers"),
    "glm4_moe_lite": (
        "glm4_moe_lite",
        {**latent_models.SIZES, **_LATENT, "n_group": 1, "topk_group": 1, "num_hidden_layers": 3},
        "num_nextn_predict_layers",
    ),
}


def save_drafting(
    folder: Path, right: float | None = None, tied: bool = False, family: str = "qwen3_5"
) -> Path:
    """A checkpoint with a draft layer, whose weights are random.

    right: layers add this share of what they would, to the embedding of a token; and so does the draft layer, whose
    input is that embedding. The less it is, the likelier both predict the same. family: a key of DRAFTING
    """
    model_type, settings, said = DRAFTING[family]
    save(folder, "drafting", {"drafting": (model_type, {**settings, "tie_word_embeddings": tied})})
    config = folder / "config.json"
    raw = {**json.loads(config.read_text()), said: 1}
    config.write_text(json.dumps(raw))
    file = folder / "model.safetensors"
    tensors, described = load_file(file), ModelConfig.from_huggingface(raw)
    draw, draft = torch.Generator().manual_seed(5), described.draft
    assert draft is not None
    for name, shape in checkpoint_tensors(Plan.of(described)).items():
        if name not in tensors:
            spread = 0.1 if len(shape) == 1 else shape[1] ** -0.5
            mean = 1 - described.arrangement.less if "norm" in name else 0
            tensors[name] = mean + spread * torch.randn(shape, generator=draw)
    tensors |= {copy: tensors[own].clone() for own, copy in draft.copies.items() if own in tensors}
    if right is not None:
        _agree(tensors, described, right)
    save_file(tensors, file, {"format": "pt"})
    return folder


def _agree(tensors: dict[str, torch.Tensor], config: ModelConfig, share: float) -> None:
    draft, hidden = config.draft, config.hidden_size
    assert draft is not None
    for name, tensor in tensors.items():
        if name.endswith(ADDED):
            tensor *= share
    tensors[f"{draft.merging}.weight"] = torch.cat((torch.eye(hidden), torch.zeros(hidden, hidden)), dim=1)
    tensors[f"{draft.token_norm}.weight"] = torch.full((hidden,), 1 - config.arrangement.less)
    tensors[f"{draft.norm}.weight"] = tensors["model.norm.weight"].clone()


def cheap(generator: Generator) -> None:
    """Drafted tokens cost what they do in models of many layers, so that tiny ones draft too."""
    layer = generator.loaded.forward.drafting
    assert layer is not None
    layer.cost = 0.05
