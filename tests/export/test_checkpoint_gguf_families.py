"""GGUF files of families whose layer is not Llama's hold the model of the safetensors they were made of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import bundles, family_models
from tests.reference import gguf_files

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.reference.streamed_model import StreamedModel
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

# A file cannot say these: mixtures are normalized, all layers have one, every fourth does not rotate, scores of
# a Gemma 3 are scaled by its head size, gates of gpt-oss are clamped at 7; and a size of MLPs where there are none.
IN_FILES = {
    "smollm3": "smollm3",
    "granite": "granite",
    "granite-tied": "granite",
    "olmo2": "olmo2",
    "exaone4": "exaone4",
    "phi3": "phi3",
    "phi3-longrope": "phi3",
    "ernie4_5": "ernie4_5",
    "hunyuan": "hunyuan-dense",
    "glm4": "glm4",
    "glm4-plain": "glm4",
    "gemma2": "gemma2",
    "gemma3-scaled": "gemma3",
    "lfm2": "lfm2",
    "lfm2-numbered": "lfm2",
    "lfm2_moe": "lfm2moe",
    "granitemoehybrid": "granitehybrid",
    "granitemoehybrid-grouped": "granitehybrid",
    "granitemoehybrid-biased": "granitehybrid",
    "granitemoehybrid-mixed": "granitehybrid",
    "nemotron_h": "nemotron_h",
    "nemotron_h-biased": "nemotron_h",
    "nemotron_h-mixed": "nemotron_h_moe",
    "gpt_oss": "gpt-oss",
    "ministral3": "mistral3",
    "qwen3_moe": "qwen3moe",
    "gemma4": "gemma4",
    "gemma4-experts": "gemma4",
    "qwen3_5": "qwen35",
    "qwen3_5-attention-first": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_5_moe-tied": "qwen35moe",
    "qwen3_next": "qwen3next",
}


def close(value: Any) -> Any:
    """Numbers are float32 in a file."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: close(one) for name, one in vars(value).items()}
    if isinstance(value, tuple):
        return tuple(close(one) for one in value)
    return np.float32(value).item() if isinstance(value, float) else value


DAILY = {architecture: name for name, architecture in IN_FILES.items()}.values()  # the last model of each


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DAILY else pytest.mark.nightly) for name in IN_FILES]
)
def test_a_file_holds_the_model_of_its_checkpoint(tmp_path: Path, name: str) -> None:
    folder = family_models.save(tmp_path / "checkpoint", name)
    opened = open_checkpoint(str(gguf_files.write(folder, tmp_path / "model.gguf")))
    original = open_checkpoint(str(folder))
    expected = original.config
    if name == "qwen3_moe":
        assert expected.experts is not None
        experts = dataclasses.replace(expected.experts, normalized=True)
        expected = dataclasses.replace(expected, experts=experts)
    if name.startswith("qwen3_5_moe") or name == "nemotron_h-mixed":
        expected = dataclasses.replace(expected, intermediate_size=opened.config.intermediate_size)
    ours, theirs = close(opened.config), close(expected)
    logits = (value["multipliers"].pop("logits") for value in (ours, theirs))
    assert next(logits) == pytest.approx(next(logits), rel=1e-6)  # one divided by it, in either precision
    assert ours == theirs
    tensors = checkpoint_tensors(original.plan)
    for tensor, shape in tensors.items():
        near = 1e-6 if tensor.endswith("A_log") else 0  # of which the file has the exponential
        torch.testing.assert_close(
            opened.tensor(tensor, shape), original.tensor(tensor, shape), rtol=near, atol=near
        )
    assert not opened.unused(tensors)


@pytest.mark.parametrize(
    "name",
    [
        *("gpt_oss", "qwen3_5_moe"),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("gemma3-scaled", "nemotron_h-mixed")),
    ],
)
def test_transformers_computes_the_same_model_of_it(tmp_path: Path, name: str) -> None:
    folder = family_models.save(tmp_path / "checkpoint", name)
    path = gguf_files.write(folder, tmp_path / "model.gguf")
    ids = bundles.random_ids(40, vocab=family_models.VOCAB).tolist()
    ours, theirs = (
        list(StreamedModel(open_checkpoint(str(one)), torch.float32).hidden_states(ids))
        for one in (path, folder)
    )
    near = 1e-4 if name == "qwen3_5_moe" else 1e-5  # a state sums what decays differ by
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=near, atol=near)


@pytest.mark.parametrize("name", ["exaone4", "olmo3", "gpt_oss"])
def test_windows_are_those_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    folder = family_models.save(tmp_path / "checkpoint", name, family_models.WINDOWS)
    path = gguf_files.write(folder, tmp_path / "model.gguf")
    assert close(open_checkpoint(str(path)).config) == close(open_checkpoint(str(folder)).config)
    architecture = {"olmo3": "olmo2", "gpt_oss": "gpt-oss"}.get(name, name)
    pattern = {f"{architecture}.attention.sliding_window_pattern": [True, False, False, True]}
    path = gguf_files.write(folder, tmp_path / "other.gguf", metadata=pattern)
    assert [kind == "window" for kind in open_checkpoint(str(path)).config.kinds] == pattern.popitem()[1]


def test_an_olmo_of_a_file_scales_layers_without_a_window(tmp_path: Path) -> None:
    folder = family_models.save(tmp_path / "checkpoint", "olmo3-scaled", family_models.WINDOWS)
    pattern = {"olmo2.attention.sliding_window_pattern": [False, True, False]}
    path = gguf_files.write(folder, tmp_path / "model.gguf", metadata=pattern)
    assert close(open_checkpoint(str(path)).config) == close(open_checkpoint(str(folder)).config)


def test_a_gemma_of_a_file_without_a_pattern_has_a_window_in_five_of_six_layers(tmp_path: Path) -> None:
    folder = family_models.save(tmp_path / "checkpoint", "gemma3", family_models.WINDOWS)
    pattern = {"gemma3.attention.sliding_window_pattern": None}
    path = gguf_files.write(folder, tmp_path / "model.gguf", metadata=pattern)
    assert close(open_checkpoint(str(path)).config) == close(open_checkpoint(str(folder)).config)
    path = gguf_files.write(
        folder, tmp_path / "none.gguf", metadata={"gemma3.attention.sliding_window": None}
    )
    assert set(open_checkpoint(str(path)).config.kinds) == {"grouped-query"}


def test_scores_of_a_granite_without_a_scale_are_scaled_as_llamas_are(tmp_path: Path) -> None:
    folder = family_models.save(tmp_path / "checkpoint", "granite")
    path = gguf_files.write(folder, tmp_path / "model.gguf", metadata={"granite.attention.scale": None})
    assert open_checkpoint(str(path)).config.multipliers.attention is None


def test_what_is_refused(tmp_path: Path) -> None:
    folder = family_models.save(tmp_path / "checkpoint", "exaone4")
    path = gguf_files.write(folder, tmp_path / "s.gguf", metadata={"exaone4.logit_scale": 2.0})
    with pytest.raises(UnsupportedModelError, match="scaled logits"):
        open_checkpoint(str(path))
    folder = family_models.save(tmp_path / "experts", "qwen3_moe")
    path = gguf_files.write(folder, tmp_path / "e.gguf", metadata={"qwen3moe.expert_used_count": None})
    with pytest.raises(CheckpointError, match=r"its metadata lack qwen3moe\.expert_used_count"):
        open_checkpoint(str(path))


REFUSED = {
    "no heads": ({"lfm2moe.attention.head_count_kv": 2}, "must be the heads of keys of each of 5 layers"),
    "heads of fewer layers": ({"lfm2moe.attention.head_count_kv": [0, 2]}, "of each of 5 layers"),
    "no attention": ({"lfm2moe.attention.head_count_kv": [0] * 5}, "0 in short convolutions alone"),
    "other heads": (
        {"lfm2moe.attention.head_count_kv": [0, 0, 2, 0, 1]},
        "layers with different numbers of heads of keys",
    ),
    "no kernel": ({"lfm2moe.shortconv.l_cache": None}, "lack lfm2moe.shortconv.l_cache"),
    "a softmax": ({"lfm2moe.expert_gating_func": 1}, "scores of experts that are no sigmoids"),
    "a window": ({"lfm2moe.attention.sliding_window": 64}, "sliding-window attention"),
}

REFUSED_OF_MAMBA = {
    "a state that is no multiple": ("granitemoehybrid", {"ssm.inner_size": 72}, "it must be a multiple"),
    "no heads of states": ("granitemoehybrid", {"ssm.time_step_rank": 5}, "are no multiple of 5 heads"),
    "one number of heads": (
        "granitemoehybrid",
        {"attention.head_count_kv": 2},
        "a number for each of 4 blocks",
    ),
    "other heads": ("nemotron_h", {"attention.head_count_kv": [0, 0, 1, 2, 0]}, "different numbers of heads"),
    "no MLPs": ("nemotron_h", {"feed_forward_length": [0] * 5}, "some of them not 0"),
    "a draft": ("nemotron_h-mixed", {"nextn_predict_layers": 1}, "with --no-mtp"),
    "groups": ("nemotron_h-mixed", {"expert_group_used_count": None}, "in 2 groups, and its metadata lack"),
    "experts in fewer columns": (
        "nemotron_h-mixed",
        {"moe_latent_size": 8},
        "experts that read a projection",
    ),
}


@pytest.mark.parametrize("what", REFUSED_OF_MAMBA)
def test_what_is_refused_of_layers_of_mamba2(tmp_path: Path, what: str) -> None:
    name, changes, says = REFUSED_OF_MAMBA[what]
    folder = family_models.save(tmp_path / "checkpoint", name)
    metadata = {f"{IN_FILES[name]}.{key}": value for key, value in changes.items()}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=says):
        open_checkpoint(str(gguf_files.write(folder, tmp_path / "m.gguf", metadata=metadata)))


def test_a_granite_of_a_file_rotates_unless_it_says_otherwise(tmp_path: Path) -> None:
    folder = family_models.save(tmp_path / "checkpoint", "granitemoehybrid")
    says_nothing = {"granitehybrid.rope.scaling.finetuned": None}
    path = gguf_files.write(folder, tmp_path / "m.gguf", metadata=says_nothing)
    assert open_checkpoint(str(path)).config.kinds[2] == "grouped-query"


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_of_an_lfm2(tmp_path: Path, what: str) -> None:
    changes, says = REFUSED[what]
    folder = family_models.save(tmp_path / "checkpoint", "lfm2_moe")
    with pytest.raises((CheckpointError, UnsupportedModelError), match=says):
        open_checkpoint(str(gguf_files.write(folder, tmp_path / "m.gguf", metadata=changes)))
