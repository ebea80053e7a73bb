"""GGUF files of models with latent attention: tensors and configuration are those of the folder they are of."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tests.latent_models import MODELS, golden_checkpoint
from tests.reference import gguf_latent

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_runtime.errors import CheckpointError


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_a_file_is_the_folder_that_it_is_of(
    shared_folder: Path, tmp_path: Path, name: str, apart: bool
) -> None:
    folder = golden_checkpoint(shared_folder, name)
    original = open_checkpoint(str(folder))
    opened = open_checkpoint(str(gguf_latent.write(folder, tmp_path / "model.gguf", apart=apart)))
    ours, theirs = opened.config, original.config
    same = dataclasses.replace(ours, ropes=theirs.ropes, rms_norm_eps=theirs.rms_norm_eps)
    assert same == theirs
    for key, value in dataclasses.asdict(theirs.rope).items():
        expected = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
        assert getattr(ours.rope, key) == expected, key
    tensors = checkpoint_tensors(original.plan)
    for tensor, shape in tensors.items():
        assert torch.equal(opened.tensor(tensor, shape), original.tensor(tensor, shape)), tensor
    assert not opened.unused(tensors)


def test_integers_of_stacked_experts_are_their_values(shared_folder: Path, tmp_path: Path) -> None:
    folder, expert = (
        golden_checkpoint(shared_folder, "v3_yarn_moe"),
        "model.layers.1.mlp.experts.5.gate_proj.weight",
    )
    opened = open_checkpoint(str(gguf_latent.write(folder, tmp_path / "model.gguf", Kind.Q8_0)))
    stacked = opened.blocks(expert)
    assert stacked is not None
    assert np.array_equal(stacked.dequantize(), opened.tensor(expert, (32, 64)).numpy())


@pytest.mark.parametrize("lost", ["attention.kv_lora_rank", "rope.dimension_count", "expert_used_count"])
def test_what_metadata_lack_is_named(
    shared_folder: Path, tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, described = golden_checkpoint(shared_folder, "v3_yarn_moe"), gguf_latent._metadata

    def without(config: dict[str, object], apart: bool) -> dict[str, object]:
        return described(config, apart) | {f"deepseek2.{lost}": None}

    monkeypatch.setattr(gguf_latent, "_metadata", without)
    with pytest.raises(CheckpointError, match=f"lack deepseek2.{lost}"):
        open_checkpoint(str(gguf_latent.write(folder, tmp_path / "model.gguf")))


def test_more_experts_than_metadata_say_are_told(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, described = golden_checkpoint(shared_folder, "v3_yarn_moe"), gguf_latent._metadata
    monkeypatch.setattr(gguf_latent, "_metadata", lambda *of: described(*of) | {"deepseek2.expert_count": 6})
    opened = open_checkpoint(str(gguf_latent.write(folder, tmp_path / "model.gguf")))
    with pytest.raises(CheckpointError, match=r"has the shape \[8, 32, 64\], and its metadata say 6 experts"):
        opened.tensor("model.layers.1.mlp.experts.5.gate_proj.weight", (32, 64))
