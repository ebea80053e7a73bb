"""Random checkpoints of families whose layer is not Llama's, made with transformers."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests import family_settings
from tests.family_convolutions import CONVOLUTIONS
from tests.family_mamba import MAMBAS
from tests.family_settings import SIZES, VOCAB
from tests.family_windows import WINDOWS
from tests.reference import checkpoints

__all__ = ["MODELS", "VOCAB", "WINDOWS", "save", "save_as_said"]

MODELS = {**family_settings.MODELS, **CONVOLUTIONS, **MAMBAS}
LESSENED = (
    "gemma2",
    "gemma3",
    "qwen3_5",
    "qwen3_next",
)  # whose norms multiply by one more than their weights


@torch.no_grad()
def _lessen_norms(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "norm" in name and "linear_attn" not in name:
            parameter -= 1


@torch.no_grad()
def _scale_layers(model: Any) -> None:
    """Scores of Gemma 4 are not divided by the root of the head size; its layers have a number each."""
    for name, parameter in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            parameter *= len(parameter) ** -0.25
        if name.endswith("router.scale"):
            parameter.fill_(len(parameter) ** 0.5)
        if name.endswith("per_expert_scale"):
            parameter.copy_(torch.linspace(0.5, 1.5, len(parameter)))
    for layer, one in enumerate(model.model.layers):
        one.layer_scalar.fill_(0.7 + 0.2 * layer)


@torch.no_grad()
def _favour_experts(model: Any) -> None:
    """Biases that count for choosing experts are zeros in a new LFM2."""
    for name, buffer in model.named_buffers():
        if name.endswith("expert_bias"):
            buffer.copy_(torch.linspace(-0.3, 0.3, len(buffer)))


def save(folder: Path, name: str, models: dict[str, tuple[str, dict[str, Any]]] = MODELS) -> Path:
    """A checkpoint of MODELS, or of WINDOWS."""
    family, settings = models[name]
    return _save(folder, AutoConfig.for_model(family, **deepcopy({**SIZES, **settings})))


def save_as_said(folder: Path, raw: dict[str, Any]) -> Path:
    """A checkpoint with this `config.json`, which transformers would write in another way."""
    _save(folder, AutoConfig.for_model(**deepcopy(raw)))
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def _save(folder: Path, config: Any) -> Path:
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    checkpoints._fill(model, seed=3)
    if config.model_type.startswith(LESSENED):
        _lessen_norms(model)
    if config.model_type == "lfm2_moe":
        _favour_experts(model)
    if config.model_type.startswith("gemma4"):
        _scale_layers(model)
    model.save_pretrained(folder)
    for file in checkpoints.TOKENIZER_FILES:
        shutil.copy(checkpoints.EXAMPLE / file, folder / file)
    return folder
