"""GGUF files of 8 bits hold what the same model's safetensors do, within the rounding of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from tests import family_models
from tests.drafting import save_drafting
from tests.reference import gguf_files

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.validation.soundness import check_checkpoint
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

pytestmark = pytest.mark.slow

# Layers with a state have heads of values of their own size: 24 elements are no whole blocks, 32 are one.
SIZES = [("qwen3_5", 24), ("qwen3_5", 32), ("qwen3_next", 32)]
OTHERS = ("gemma4-experts", "granitemoehybrid-mixed")


@pytest.mark.parametrize(("name", "value_size"), [*((name, 32) for name in OTHERS), *SIZES])
def test_integers_of_a_file_are_its_values(tmp_path: Path, name: str, value_size: int) -> None:
    """And those of the safetensors, up to half a step of 8 bits."""
    family, settings = family_models.MODELS[name]
    if family.startswith("qwen"):
        settings = settings | {"linear_value_head_dim": value_size}
    folder = family_models.save(tmp_path / "checkpoint", name, {name: (family, settings)})
    opened = open_checkpoint(str(gguf_files.write(folder, tmp_path / "model.gguf", Kind.Q8_0)))
    original = open_checkpoint(str(folder))
    kept = 0
    for tensor, shape in checkpoint_tensors(opened.plan).items():
        found, expected = opened.tensor(tensor, shape).numpy(), original.tensor(tensor, shape).numpy()
        np.testing.assert_allclose(found, expected, atol=0.005 * np.abs(expected).max(), err_msg=tensor)
        integers = opened.blocks(tensor) if len(shape) == 2 else None
        if integers is not None:
            np.testing.assert_array_equal(integers.dequantize(), found, tensor)
            kept += 1
    whole = any(
        name.endswith("out_proj.weight") and opened.blocks(name) is not None
        for name in checkpoint_tensors(opened.plan)
    )
    assert kept > 20
    assert not family.startswith("qwen") or family == "qwen3_next" or whole == (value_size == 32)


def test_an_older_qwen3_next_has_one_tensor_of_queries_keys_values_and_gates(tmp_path: Path) -> None:
    folder = family_models.save(tmp_path / "checkpoint", "qwen3_next")
    original = open_checkpoint(str(folder))
    name = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    rows = original.original.tensor(name, (256, 64)).numpy()  # type: ignore[attr-defined]
    older = {"blk.0.attn_qkv.weight": None, "blk.0.attn_gate.weight": None, "blk.0.ssm_in.weight": rows}
    opened = open_checkpoint(str(gguf_files.write(folder, tmp_path / "model.gguf", tensors=older)))
    for part, size in (("qkv", 160), ("z", 96)):
        own = f"model.layers.0.linear_attn.in_proj_{part}.weight"
        np.testing.assert_array_equal(opened.tensor(own, (size, 64)), original.tensor(own, (size, 64)))
    assert not opened.unused(checkpoint_tensors(opened.plan))


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_a_draft_layer_is_that_of_the_checkpoint(tmp_path: Path, family: str) -> None:
    folder = save_drafting(tmp_path / "checkpoint", family=family)
    opened = open_checkpoint(str(gguf_files.write(folder, tmp_path / "m.gguf")))
    original, names = open_checkpoint(str(folder)), checkpoint_tensors(opened.plan)
    assert names.keys() == checkpoint_tensors(original.plan).keys()
    assert not opened.unused(names)
    check_checkpoint(opened)
    drafting = {name: shape for name, shape in names.items() if name.startswith("mtp.")}
    assert len(drafting) > 10
    for name, shape in drafting.items():
        np.testing.assert_allclose(opened.tensor(name, shape), original.tensor(name, shape), atol=1e-6)


def test_a_file_may_lack_the_draft_layer_that_it_names(tmp_path: Path) -> None:
    folder = family_models.save(tmp_path / "checkpoint", "qwen3_5")
    path = gguf_files.write(
        folder, tmp_path / "m.gguf", metadata={"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    )
    config = open_checkpoint(str(path)).config
    assert (config.layers, config.draft_layers, config.draft) == (4, 1, None)


REFUSED = {
    "a window everywhere": (
        {"metadata": {"gemma4.attention.sliding_window_pattern": [True] * 4}}, "say for each of 4 layers",
    ),
    "no pattern": ({"metadata": {"gemma4.attention.sliding_window_pattern": None}}, "say for each of 4 layers"),
    "other MLPs": (
        {"metadata": {"gemma4.feed_forward_length": [96, 192, 96, 192]}}, "only the last 2 layers",
    ),
    "partial rotation": ({"metadata": {"gemma4.rope.dimension_count_swa": 16}}, r"\(16 of 32 elements\)"),
    "no factors": ({"tensors": {"rope_freqs.weight": None}}, "has no tensor 'rope_freqs.weight'"),
    "other factors": (
        {"tensors": {"rope_freqs.weight": np.full(32, 2, np.float32)}}, "must only stop the rotation",
    ),
    "no table": ({"tensors": {"per_layer_token_embd.weight": None}}, "no matrix 'per_layer_token_embd.weight'"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_of_a_gemma4(tmp_path: Path, what: str) -> None:
    changes, says = REFUSED[what]
    folder = family_models.save(tmp_path / "checkpoint", "gemma4")
    with pytest.raises((CheckpointError, UnsupportedModelError), match=says):
        open_checkpoint(str(gguf_files.write(folder, tmp_path / "m.gguf", **changes)))  # type: ignore[arg-type]


def test_columns_of_a_layer_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    family, settings = family_models.MODELS["gemma4"]
    settings = settings | {"hidden_size_per_layer_input": 16}
    folder = family_models.save(tmp_path / "checkpoint", "gemma4", {"gemma4": (family, settings)})
    opened = open_checkpoint(str(gguf_files.write(folder, tmp_path / "m.gguf", Kind.Q8_0)))
    with pytest.raises(UnsupportedModelError, match="the columns of one layer are not whole blocks of Q8_0"):
        opened.tensor("model.layers.1.embed_tokens_per_layer.weight", (512, 16))
