"""Checkpoints saved from a model without its head, and what sentence-transformers says of their embeddings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import bundles, family_models
from tests.reference import checkpoints, gguf_files
from transformers import AutoModel

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_runtime import Generator
from h2o_runtime.answers.events import read_at_once
from h2o_runtime.bundles.manifest import EmbeddingSpec
from h2o_runtime.errors import CheckpointError, UnsupportedModelError
from h2o_runtime.names import Pooling
from h2o_runtime.policies.prefill import Full

LAST = {"pooling_mode_cls_token": False, "pooling_mode_lasttoken": True}


def without_head(folder: Path, tied: bool) -> Path:
    return save_base(checkpoints.make_checkpoint(folder.with_name("whole"), layers=1, tied=tied), folder)


def save_base(whole: Path, folder: Path) -> Path:
    """As transformers saves the base model."""
    AutoModel.from_pretrained(whole).save_pretrained(folder)
    for file in checkpoints.TOKENIZER_FILES:
        shutil.copy(whole / file, folder / file)
    return folder


def described(folder: Path, pooling: dict[str, Any], *further: str) -> Path:
    """`modules.json` and the pooling's config.json."""
    kinds = ["models.Transformer", "models.Pooling", *further]
    modules = [
        {"idx": index, "path": f"{index}_{kind.rpartition('.')[2]}", "type": f"sentence_transformers.{kind}"}
        for index, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


@pytest.mark.parametrize("normalized", [True, False])
def test_a_base_model_gives_its_own_embedding(tmp_path: Path, normalized: bool) -> None:
    folder = without_head(tmp_path / "base", tied=True)
    described(folder, LAST, *(["models.Normalize"] if normalized else []))
    bundle = bundles.export(folder, tmp_path / "bundle")
    ids = bundles.random_ids(40)
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder)(torch.from_numpy(ids)[None]).last_hidden_state[0]
    expected = states[-1].double().numpy()
    expected /= np.linalg.norm(expected) if normalized else 1
    with Generator.load(bundle, context=64) as generator:
        found = read_at_once(generator.embed(ids, policy=Full()))
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["gemma3", "qwen3_5"])
def test_text_models_of_more_than_text_have_base_models_too(tmp_path: Path, name: str) -> None:
    """Their base class is called TextModel."""
    family, settings = family_models.MODELS[name]
    tied = {name: (family, {**settings, "tie_word_embeddings": True})}
    whole = family_models.save(tmp_path / "whole", name, tied)
    opened = [open_checkpoint(str(folder)) for folder in (whole, save_base(whole, tmp_path / "base"))]
    assert opened[0].config == opened[1].config
    tensors = checkpoint_tensors(opened[1].plan)
    assert not opened[1].unused(tensors)
    for tensor, shape in tensors.items():
        assert torch.equal(*(checkpoint.tensor(tensor, shape) for checkpoint in opened))


def test_a_base_model_without_a_tied_head_is_refused(tmp_path: Path) -> None:
    folder = without_head(tmp_path / "base", tied=False)
    with pytest.raises(UnsupportedModelError, match="was saved without a head"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("pooling", "further", "expected"),
    [
        ({"pooling_mode_mean_tokens": True}, (), EmbeddingSpec(normalized=False)),
        (
            {"pooling_mode": "lasttoken"},
            ("base.modules.normalize.Normalize",),
            EmbeddingSpec(pooling=Pooling.LAST),
        ),
    ],
)
def test_old_and_new_descriptions_of_a_pooling(
    small_checkpoint: Path,
    tmp_path: Path,
    pooling: dict[str, Any],
    further: tuple[str, ...],
    expected: EmbeddingSpec,
) -> None:
    folder = described(Path(shutil.copytree(small_checkpoint, tmp_path / "model")), pooling, *further)
    assert open_checkpoint(str(folder)).embedding == expected


@pytest.mark.parametrize("unknown", ["pooling 'cls_token'", "Dense"])
def test_what_is_not_computed_is_named(
    small_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, unknown: str
) -> None:
    pooling = LAST if unknown == "Dense" else {"pooling_mode_cls_token": True}
    folder = Path(shutil.copytree(small_checkpoint, tmp_path / "model"))
    described(folder, pooling, *(["models.Dense"] if unknown == "Dense" else []))
    assert open_checkpoint(str(folder)).embedding.pooling in Pooling
    assert f"need what is not supported: {unknown}" in caplog.text


@pytest.mark.parametrize("text", ["{", "[1]", "{}"])
def test_a_damaged_description_is_refused(small_checkpoint: Path, tmp_path: Path, text: str) -> None:
    folder = Path(shutil.copytree(small_checkpoint, tmp_path / "model"))
    (folder / "modules.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        open_checkpoint(str(folder)).embedding  # noqa: B018


def test_a_gguf_file_says_its_pooling(small_checkpoint: Path, tmp_path: Path) -> None:
    path = gguf_files.write(small_checkpoint, tmp_path / "m.gguf", metadata={"llama.pooling_type": 3})
    assert open_checkpoint(str(path)).embedding == EmbeddingSpec(pooling=Pooling.LAST)
