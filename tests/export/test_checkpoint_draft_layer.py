"""When a checkpoint's draft layer is exported: where config.json names it, and the files have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.drafting import save_drafting
from tests.family_models import save

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors, draft_graphs
from h2o_export.exporter import ExportOptions, model_spec
from h2o_export.validation.soundness import check_checkpoint
from h2o_runtime.errors import CheckpointError

FILE = "model.safetensors"


@pytest.fixture
def drafting(tmp_path: Path) -> Path:
    return save_drafting(tmp_path / "checkpoint")


def test_its_tensors_are_the_files(drafting: Path) -> None:
    opened = open_checkpoint(str(drafting))
    names = checkpoint_tensors(opened.plan)
    assert names.keys() == load_file(drafting / FILE).keys()
    assert not opened.unused(names)
    check_checkpoint(opened)
    spec = model_spec(opened, "float32", ExportOptions("", drafting).formats(opened))
    assert spec.draft is not None
    assert (spec.draft.gate_size, spec.draft.row.elements) == (4 * 32, 2 * 2 * 32)


@pytest.mark.parametrize("family", ["qwen3_5_moe", "deepseek_v3", "glm4_moe_lite"])
def test_nothing_of_it_is_left_out_in_other_families(
    tmp_path: Path, family: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened = open_checkpoint(str(save_drafting(tmp_path / "checkpoint", family=family)))
    assert opened.config.draft is not None
    names = {*checkpoint_tensors(opened.plan), *opened.config.draft.copies.values()}
    assert names == load_file(tmp_path / "checkpoint" / FILE).keys()
    check_checkpoint(opened)
    assert "left out" not in caplog.text


def test_an_embedding_of_its_own_is_not_supported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = save_drafting(tmp_path / "checkpoint", family="deepseek_v3")
    tensors = load_file(folder / FILE)
    tensors["model.layers.2.embed_tokens.weight"] += 1
    save_file(tensors, folder / FILE, {"format": "pt"})
    opened = open_checkpoint(str(folder))
    assert not draft_graphs(opened.config)
    assert "its draft layer has an embedding or a head of its own" in caplog.text
    check_checkpoint(opened)


def test_files_may_lack_it(tmp_path: Path) -> None:
    save(tmp_path, "qwen3_5")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "mtp_num_hidden_layers": 1}))
    opened = open_checkpoint(str(tmp_path))
    assert not draft_graphs(opened.config)
    check_checkpoint(opened)


@pytest.mark.parametrize("said", [{"mtp_num_hidden_layers": 0}, {"mtp_use_dedicated_embeddings": True}])
def test_another_form_is_left_out(
    drafting: Path, said: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    config = drafting / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **said}))
    opened = open_checkpoint(str(drafting))
    assert not draft_graphs(opened.config)
    check_checkpoint(opened)
    assert "left out, because the exported model does not use them: 'mtp.fc.weight'" in caplog.text


def test_a_part_of_it_is_not_enough(drafting: Path) -> None:
    tensors = load_file(drafting / FILE)
    del tensors["mtp.layers.0.mlp.up_proj.weight"]
    save_file(tensors, drafting / FILE, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"mtp\.layers\.0\.mlp\.up_proj\.weight"):
        check_checkpoint(open_checkpoint(str(drafting)))


def test_it_stands_beside_a_vision_tower_too(drafting: Path) -> None:
    tensors = load_file(drafting / FILE)
    named = {name.replace("model.", "model.language_model.", 1): one for name, one in tensors.items()}
    save_file(named, drafting / FILE, {"format": "pt"})
    config = drafting / "config.json"
    text = json.loads(config.read_text())
    config.write_text(json.dumps({"model_type": "qwen3_5", "text_config": text}))
    opened = open_checkpoint(str(drafting))
    assert len(draft_graphs(opened.config)) == 2
    check_checkpoint(opened)
