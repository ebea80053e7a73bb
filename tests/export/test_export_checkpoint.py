"""Opening checkpoints: whole, sharded and damaged ones."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import bundles
from tests.reference import checkpoints
from tests.users import open_folder, ordinary_user

from h2o_export.checkpoints import open_checkpoint
from h2o_export.validation.soundness import check_checkpoint
from h2o_runtime.errors import CheckpointError
from h2o_runtime.text import Tokenizer
from h2o_runtime.text.chat_template import Renderer

NORM = "model.norm.weight"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_checkpoint(tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_checkpoint(tmp_path_factory.mktemp("sharded") / "model", sharded=True)


def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_a_single_file_may_have_any_name(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert NORM in open_checkpoint(str(folder)).files


def test_the_identity_is_that_of_config_and_weights(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    identity = open_checkpoint(str(whole)).sha256()
    assert open_checkpoint(str(folder)).sha256() == identity
    (folder / "tokenizer_config.json").write_text("{}")
    assert open_checkpoint(str(folder)).sha256() == identity
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    assert open_checkpoint(str(folder)).sha256() != identity


# --- Damage -----------------------------------------------------------------------------------------------


def edit_weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return edit


def edit_config(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return edit


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (
        lambda f: (f / "config.json").unlink(),
        "copy: has no config.json, so it is not a Hugging Face",
    ),
    "empty config": (lambda f: (f / "config.json").write_text(""), "config.json: cannot be read as JSON"),
    "binary config": (
        lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"),
        "config.json: cannot be read",
    ),
    "list config": (lambda f: (f / "config.json").write_text("[1]"), "config.json: is not a JSON object"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "copy: no safetensors files$"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_when_the_checkpoint_is_opened(whole: Path, tmp_path: Path, damage: str) -> None:
    folder = copy(whole, tmp_path)
    harm, says = DAMAGE[damage]
    harm(folder)
    with pytest.raises(CheckpointError, match=says) as caught:
        open_checkpoint(str(folder))
    assert str(folder) in str(caught.value)


CONTRADICTIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a tensor of another shape": (
        edit_weights(lambda w: w.update({NORM: torch.ones(65)})),
        rf"model.safetensors: tensor '{NORM}' has shape \[65\], but config.json implies \[64\]",
    ),
    "more layers than weights": (edit_config(num_hidden_layers=3), "no tensor 'model.layers.2"),
}


def edit_json(name: str, **changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / name
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | changes))

    return edit


LAYER = "model.layers.0.self_attn"
CONTRADICTIONS |= {
    "a bias without a place": (
        edit_weights(lambda w: w.update({f"{LAYER}.q_proj.bias": torch.ones(128)})),
        f"has the tensor '{LAYER}.q_proj.bias', which a model with this config.json does not use",
    ),
    "fewer layers than weights": (
        edit_config(num_hidden_layers=1),
        r"has the tensor 'model.layers.1.*config.json says 1 layers; is config.json the right one",
    ),
    "an untied head that is said to be tied": (
        edit_config(tie_word_embeddings=True),
        "ties the head to the embedding, but 'lm_head.weight' is another matrix",
    ),
    "NaN": (
        edit_weights(lambda w: w.update({NORM: torch.full((64,), torch.nan)})),
        f"tensor '{NORM}' holds NaN or infinity where numbers should be",
    ),
    "an end beyond the vocabulary": (
        lambda f: (
            edit_json("generation_config.json", eos_token_id=5000)(f),
            edit_json("tokenizer_config.json", eos_token=None)(f),
        ),
        r"the end token 5000 is beyond the vocabulary \(4,096 tokens\), so no answer would",
    ),
    "a template with a syntax error": (
        lambda f: (f / "chat_template.jinja").write_text("{% if %}"),
        r"copy/chat_template.jinja: the chat template 'default' has a syntax error in line 1",
    ),
    "a template that never works": (
        lambda f: (f / "chat_template.jinja").write_text("{{ messages.first.second.third }}"),
        "copy: its chat template renders no conversation: .*UndefinedError",
    ),
    "a template that never ends": (
        lambda f: (f / "chat_template.jinja").write_text("{{ 7 ** (7 ** (7 * messages|length * 9)) }}"),
        "copy/chat_template.jinja: the chat template broke a limit: takes more than 1 s",
    ),
}


@pytest.mark.parametrize("damage", CONTRADICTIONS)
def test_contradictions_stop_the_export_and_leave_nothing(
    whole: Path, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_second = functools.partialmethod(Renderer.__init__, seconds=1)  # in place of five
    monkeypatch.setattr(Renderer, "__init__", one_second)
    folder = copy(whole, tmp_path)
    harm, says = CONTRADICTIONS[damage]
    harm(folder)
    with pytest.raises(CheckpointError, match=says):
        bundles.export(folder, tmp_path / "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_what_changes_no_result_is_told(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy(whole, tmp_path)
    edit_weights(
        lambda w: w.update(
            {"vision.weight": torch.ones(2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
        )
    )(folder)
    edit_json("generation_config.json", eos_token_id=[1, 5000])(folder)
    check_checkpoint(open_checkpoint(str(folder)))
    assert "does not use them: 'vision.weight'" in caplog.text
    assert "rotary" not in caplog.text
    assert "the end token 5000 is beyond the vocabulary of 4096" in caplog.text
    caplog.clear()
    check_checkpoint(open_checkpoint(str(whole)))
    assert not caplog.text


def test_ends_of_config_json_go_with_the_tokenizer(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    (folder / "generation_config.json").unlink(missing_ok=True)
    edit_json("tokenizer_config.json", eos_token=None)(folder)
    edit_config(eos_token_id=[2, 7])(folder)
    (tmp_path / "written").mkdir()
    open_checkpoint(str(folder)).write_tokenizer(tmp_path / "written")
    assert Tokenizer.load(tmp_path / "written").eos_ids == {2, 7}


def test_a_tokenizer_larger_than_the_embedding_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = checkpoints.make_checkpoint(tmp_path / "small", vocab=1000)
    for name in checkpoints.TOKENIZER_FILES:
        shutil.copy(checkpoints.EXAMPLE / name, folder / name)
    check_checkpoint(open_checkpoint(str(folder)))
    assert "its tokenizer has 4096 tokens but its embedding only 1000" in caplog.text


def test_a_missing_shard_is_named(sharded: Path, tmp_path: Path) -> None:
    folder = copy(sharded, tmp_path)
    shards = sorted(folder.glob("model-*.safetensors"))
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=rf"shard {shards[1].name} is missing \(1 in all\)"):
        open_checkpoint(str(folder))


def test_weights_that_may_not_be_read_are_not_called_damaged(sharded: Path) -> None:
    with open_folder() as place:
        folder = copy(sharded, place)
        shard = sorted(folder.glob("model-*.safetensors"))[0]
        shard.chmod(0)
        with (
            ordinary_user(),
            pytest.raises(CheckpointError, match=rf"{shard.name}: cannot be read: check its"),
        ):
            open_checkpoint(str(folder))


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{"])
def test_a_broken_index_is_named(sharded: Path, tmp_path: Path, content: str) -> None:
    folder = copy(sharded, tmp_path)
    (folder / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=INDEX):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/hostname", "link.safetensors", "fifo"])
def test_an_index_names_files_of_its_folder(sharded: Path, tmp_path: Path, name: str) -> None:
    folder = copy(sharded, tmp_path)
    shutil.copyfile(folder / "model-00001-of-00003.safetensors", tmp_path / "secret.safetensors")
    (folder / "link.safetensors").symlink_to("../secret.safetensors")
    os.mkfifo(folder / "fifo")
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][NORM] = name
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(
        CheckpointError, match=r"outside of this folder; do not use it|outside of its folder|is a FIFO, not"
    ):
        open_checkpoint(str(folder))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"]
)
def test_a_fifo_is_not_waited_for_and_a_link_out_is_not_followed(
    whole: Path, tmp_path: Path, name: str
) -> None:
    folder = copy(whole, tmp_path)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match=f"{name}: is a FIFO"):
        open_checkpoint(str(folder)).write_tokenizer(tmp_path)
    (folder / name).unlink()
    (folder / name).symlink_to("/etc/hostname")
    with pytest.raises(CheckpointError, match=f"{name}: is a link to /etc/hostname"):
        open_checkpoint(str(folder)).write_tokenizer(tmp_path)


def test_a_file_that_vanishes_while_it_is_read_is_named(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    opened = open_checkpoint(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors: cannot read tensor"):
        opened.tensor(NORM, (64,))


def test_wrong_places_are_told_apart(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is a file; give the folder that holds config.json"):
        open_checkpoint(str(whole / "config.json"))
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_checkpoint(str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_checkpoint("nowhere")


def test_values_beyond_float16_stop_a_float16_export(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    edit_weights(lambda w: w.update({NORM: torch.full((64,), 1e6)}))(folder)
    with pytest.raises(CheckpointError, match=f"'{NORM}' has values beyond float16's range"):
        bundles.export(folder, tmp_path / "bundle", dtype="float16")


def test_a_tensor_in_two_shards_is_refused(sharded: Path, tmp_path: Path) -> None:
    """Which of the two is the model's, nothing says."""
    folder = copy(sharded, tmp_path)
    first, last = (sorted(folder.glob("model-*.safetensors"))[place] for place in (0, -1))
    name = next(iter(load_file(first)))
    save_file(load_file(last) | {name: torch.zeros(1)}, last)
    with pytest.raises(
        CheckpointError, match=rf"{last.name}: has the tensor '{name}', which {first.name} has too"
    ):
        open_checkpoint(str(folder))
