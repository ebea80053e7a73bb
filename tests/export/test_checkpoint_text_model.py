"""Checkpoints that see as well: their text model is read, as transformers computes it, and the rest left out."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import bundles
from tests.family_models import VOCAB, save
from tests.reference import checkpoints
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from h2o_export.architecture.config import ModelConfig
from h2o_export.checkpoints import open_checkpoint
from h2o_export.checkpoints.text_model import text_config
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.reference.streamed_model import StreamedModel
from h2o_export.validation.soundness import check_checkpoint
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder of Gemma 3 with its vision tower, and the model."""
    folder = tmp_path_factory.mktemp("gemma3")
    config = AutoConfig.for_model(
        "gemma3", text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4, image_token_index=7
    )
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).eval()
    model.save_pretrained(folder)
    for file in checkpoints.TOKENIZER_FILES:
        shutil.copy(checkpoints.EXAMPLE / file, folder / file)
    return folder, model


def renamed(folder: Path, target: Path, language: str, text: bool = True) -> Path:
    """The folder with names of tensors as one or another version of transformers wrote them."""
    shutil.copytree(folder, target)
    file = target / "model.safetensors"
    made = {}
    for name, tensor in load_file(file).items():
        rest = name.removeprefix("model.language_model.").removeprefix("language_model.model.")
        if rest != name and text:
            made[language + rest] = tensor
        elif rest == name:
            made[name] = tensor
    save_file(made, file, metadata={"format": "pt"})
    return target


@pytest.mark.parametrize("language", ["model.language_model.", "language_model.model."])
def test_the_text_model_is_transformers(
    whole: tuple[Path, Any], tmp_path: Path, language: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, model = whole
    with caplog.at_level(logging.WARNING):
        opened = open_checkpoint(str(renamed(folder, tmp_path / "model", language)))
        check_checkpoint(opened)
    (said,) = [record.message for record in caplog.records if "checkpoints" in record.name]
    assert said.endswith("only its text model is exported; left out: multi_modal_projector, vision_tower")
    assert opened.config.family == "gemma3_text"
    assert not opened.unused(checkpoint_tensors(opened.plan))
    ids = bundles.random_ids(40, vocab=VOCAB)
    ids[ids == 7] = 8  # stands for an image
    streamed = StreamedModel(opened, torch.float32)
    *_, hidden = streamed.hidden_states(ids.tolist())
    with torch.inference_mode():
        expected = model(torch.from_numpy(ids)[None]).logits[0]
    torch.testing.assert_close(streamed.logits(hidden), expected, rtol=1e-4, atol=1e-5)


def test_a_folder_of_a_vision_tower_alone_is_refused(whole: tuple[Path, Any], tmp_path: Path) -> None:
    folder = renamed(whole[0], tmp_path / "model", "", text=False)
    with pytest.raises(
        UnsupportedModelError, match="holds no text model, only multi_modal_projector, vision_tower"
    ):
        open_checkpoint(str(folder))


def test_models_that_only_see_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="there is no text model in it"):
        ModelConfig.from_huggingface({"model_type": "siglip_vision_model"})


def test_a_model_that_sees_too_is_refused_for_its_text_model() -> None:
    for raw in (
        {"model_type": "qwen2_vl", "vision_config": {}},
        text_config({"model_type": "qwen2_vl", "text_config": {"model_type": "other", "vision_config": {}}}),
    ):
        with pytest.raises(
            UnsupportedModelError, match="reads more than text, and its text model is none of"
        ):
            ModelConfig.from_huggingface(raw)
    whole = AutoConfig.for_model("qwen2_vl").to_dict()
    with pytest.raises(UnsupportedModelError, match="'qwen2_vl_text' is not supported: its decoder layer"):
        ModelConfig.from_huggingface(text_config(whole))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"use_bidirectional_attention": True}, "attention to later tokens"),
        ({"hidden_activation": "gelu"}, r"the activation \(hidden_activation = 'gelu'\)"),
    ],
)
def test_what_no_graph_computes_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        ModelConfig.from_huggingface({"model_type": "gemma3_text", **changes})


def test_keys_that_no_layer_reads_are_left_out(tmp_path: Path) -> None:
    """Files of Gemma 4 have keys for layers that read those of earlier ones."""
    folder = save(tmp_path / "text", "gemma4")
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    unread = "model.language_model.layers.3.self_attn.k_proj.weight"
    tensors |= {unread: torch.zeros(64, 64), "model.vision_tower.weight": torch.zeros(8)}
    save_file(tensors, folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma4", "text_config": text}))
    checkpoint = open_checkpoint(str(folder))
    check_checkpoint(checkpoint)
    ids = list(range(40, 70))
    model = StreamedModel(checkpoint, torch.float32)
    *_, hidden = model.hidden_states(ids)
    with torch.inference_mode():
        logits = expected(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(model.logits(hidden), logits)
    save_file(
        tensors | {unread.replace("layers.3", "layers.1").replace("k_", "g_"): torch.zeros(8)},
        folder / "model.safetensors",
    )
    with pytest.raises(CheckpointError, match="does not use"):
        check_checkpoint(open_checkpoint(str(folder)))
