"""Folders with an adapter that is not merged into its model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.reference import checkpoints

from h2o_export.checkpoints import open_checkpoint
from h2o_runtime.errors import CheckpointError


def lora(target: Path, base: Path | None = None) -> None:
    """What a trainer leaves in a folder: an adapter of one projection, for the model `base`."""
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    save_file(
        {f"{name}{part}.weight": torch.ones(8, 64) for part in "AB"}, target / "adapter_model.safetensors"
    )
    settings = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": base and str(base)}
    (target / "adapter_config.json").write_text(json.dumps(settings))


def unmerged(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As the state of a model with an adapter is stored."""
    return {
        f"base_model.model.{name}".replace("q_proj.weight", "q_proj.base_layer.weight"): tensor
        for name, tensor in weights.items()
    }


MERGE = r"merge it first: PeftModel.*merge_and_unload\(\).save_pretrained\(folder\)"


def test_an_adapter_is_refused_until_it_is_merged(tmp_path: Path) -> None:
    whole, beside, alone, inside = (tmp_path / name for name in ("whole", "beside", "alone", "inside"))
    checkpoints.make_checkpoint(whole)
    shutil.copytree(whole, beside)
    lora(beside, whole)
    with pytest.raises(
        CheckpointError, match=rf"{beside}: has an adapter beside .*adapter_config.json.*by `adapter`"
    ):
        open_checkpoint(str(beside))
    alone.mkdir()
    for base, named in ((whole, f"'{whole}'"), (None, "another model")):
        lora(alone, base)
        with pytest.raises(
            CheckpointError,
            match=f"{alone}: is an adapter for {named}, not a model; .*name this folder by `adapter`",
        ):
            open_checkpoint(str(alone))
    (alone / "adapter_config.json").write_text("{half")
    with pytest.raises(CheckpointError, match="is an adapter for another model"):
        open_checkpoint(str(alone))
    shutil.copytree(whole, inside)
    weights = load_file(inside / "model.safetensors")
    save_file(unmerged(weights), inside / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"q_proj.base_layer.weight' is that of an adapter.*{MERGE}"):
        open_checkpoint(str(inside))
