"""Latent attention and mixtures of experts against transformers, module by module as torch runs them.

The gates are those of an exported bundle. Every mistake that is easily made is made once: it must show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import latent_models
from tests.latent_models import EXPERTS, MODELS, YARN
from tests.reference.latent import EagerModel, Run

from h2o_export.architecture.config import ModelConfig
from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.experts import Router
from h2o_export.layers import latent
from h2o_export.validation.soundness import check_checkpoint
from h2o_runtime.errors import CheckpointError, UnsupportedModelError
from h2o_runtime.layer_spec import LayerSpec

LOGITS, LATENTS, FIRST_LATENTS = 3e-5, 1e-5, 5e-6

Patch = pytest.MonkeyPatch


def errors(run: Run, known: dict[str, Any]) -> tuple[float, float, float]:
    """Of logits, of latents, and of those of the first layer."""
    latents = np.abs(run.latents - known["latents"]).max(axis=(1, 2))
    return float(np.abs(run.logits - known["prompt_logits"]).max()), float(latents.max()), float(latents[0])


@pytest.mark.parametrize("form", ["absorbed", "expanded"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_latents_are_those_of_transformers(
    name: str, form: str, shared_folder: Path, monkeypatch: Patch
) -> None:
    opened = open_checkpoint(str(latent_models.golden_checkpoint(shared_folder, name)))
    known = latent_models.arrays(name)
    logits, latents, first = errors(EagerModel(opened, monkeypatch).run(known["prompt_ids"], form), known)
    assert logits <= LOGITS
    assert latents <= LATENTS
    assert first <= FIRST_LATENTS


# --- Mistakes, each planted in what the exporter is made of ------------------------------------------------


def norm_eps_of_the_layers(patch: Patch) -> None:
    patch.setattr(latent, "NORM_EPS", 1e-5)


def no_magnitude_in_the_scale(patch: Patch) -> None:
    _change_scale(patch, lambda spec, config: spec.scale / config.rope.score_factor)


def other_pairs_turn(patch: Patch) -> None:
    projection = latent.Latent.projection

    def mistaken(self: Any, config: Any) -> Any:
        (sizes,) = config.kind_sizes
        turned = replace(sizes, pairs_in=not sizes.pairs_in)
        return projection(self, replace(config, kind_sizes=(turned,)))

    patch.setattr(latent.Latent, "projection", mistaken)


def bias_in_the_weights(patch: Patch) -> None:
    forward = Router.forward

    def mistaken(self: Any, x: Any) -> Any:
        _, chosen = forward(self, x)
        scores = (x @ self.weight.T).sigmoid() + self.e_score_correction_bias
        weights = scores.gather(1, chosen)
        return weights / weights.sum(dim=-1, keepdim=True) * self.config.factor, chosen

    patch.setattr(Router, "forward", mistaken)


def _change_scale(patch: Patch, scale: Callable[[LayerSpec, Any], float]) -> None:
    spec = latent.Latent.spec

    def mistaken(self: Any, config: Any) -> LayerSpec:
        right = spec(self, config)
        return right.model_copy(update={"scale": scale(right, config)})

    patch.setattr(latent.Latent, "spec", mistaken)


MISTAKES = (norm_eps_of_the_layers, no_magnitude_in_the_scale, other_pairs_turn, bias_in_the_weights)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_shows(
    mistake: Callable[[Patch], None], shared_folder: Path, monkeypatch: Patch
) -> None:
    name = "v3_yarn_moe"
    opened = open_checkpoint(str(latent_models.golden_checkpoint(shared_folder, name)))
    known = latent_models.arrays(name)
    mistake(monkeypatch)
    logits, _, first = errors(EagerModel(opened, monkeypatch).run(known["prompt_ids"]), known)
    if mistake is norm_eps_of_the_layers:  # the one that logits hardly tell
        assert first > 1.5 * FIRST_LATENTS
    else:
        assert logits > 0.5


# --- Combinations that the golden models have not ----------------------------------------------------------

GLM = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "qk_nope_head_dim": 24,
    "v_head_dim": 20,
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "query rank, YaRN, magnitudes that differ": (
        "deepseek_v3",
        {**EXPERTS, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
    ),
    "halves turn, attention has biases": (
        "deepseek_v3",
        {**EXPERTS, "rope_interleave": False, "attention_bias": True},
    ),
    "softmax over groups of experts": (
        "deepseek_v2",
        {**EXPERTS, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5, "mlp_bias": True},
    ),
    "no mixtures": ("youtu", {"tie_word_embeddings": True}),
    "mixtures after the first": ("glm4_moe_lite", GLM),
    "named mixtures": (
        "glm4_moe_lite",
        {**GLM, "mlp_layer_types": ["sparse", "dense"], "q_lora_rank": None, "norm_topk_prob": False},
    ),
    "no mixture in any layer": ("glm4_moe_lite", {"mlp_layer_types": ["dense"] * 2}),
}


def compared(
    folder: Path,
    patch: Patch,
    name: str,
    change: Callable[[ModelConfig], ModelConfig] = lambda config: config,
) -> list[float]:
    """The largest error of logits against transformers, absorbed and expanded; `change` plants a mistake."""
    model_type, settings = OTHERS[name]
    theirs = latent_models.make(folder, model_type, **settings)
    ids = np.random.default_rng(3).integers(0, 128, 100)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
    opened = open_checkpoint(str(folder))
    model = EagerModel(opened, patch, change(opened.config))
    return [float(np.abs(model.run(ids, form).logits - expected).max()) for form in ("absorbed", "expanded")]


@pytest.mark.parametrize("name", OTHERS)
def test_other_combinations_are_those_of_transformers(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    assert max(compared(tmp_path, monkeypatch, name)) <= LOGITS


def test_layers_that_guess_further_tokens_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    latent_models.make(tmp_path, "deepseek_v3", **EXPERTS)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "model.layers.2.eh_proj.weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    _change(tmp_path, num_nextn_predict_layers=0)
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.eh_proj"):
        check_checkpoint(open_checkpoint(str(tmp_path)))
    _change(tmp_path, num_nextn_predict_layers=1)
    check_checkpoint(open_checkpoint(str(tmp_path)))
    assert "left out" in caplog.text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mlp_layer_types": ["sparse"]}, "mlp_layer_types must name the kind of each of 2 layers"),
        ({"mlp_layer_types": ["sparse", "odd"]}, "mlp_layer_types must name the kind of each of 2 layers"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            r"partial rotary embedding \(partial_rotary_factor = 0.5\) is not supported",
        ),
    ],
)
def test_layers_of_another_kind_are_refused(changes: dict[str, Any], says: str) -> None:
    raw = {"model_type": "glm4_moe_lite", **latent_models.SIZES, **GLM, **changes}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=says):
        ModelConfig.from_huggingface(raw)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"topk_method": "noaux_tc"}, "choosing experts so (topk_method = 'noaux_tc') is not supported"),
        ({"scoring_func": "sigmoid"}, "such scores of experts (scoring_func = 'sigmoid') is not supported"),
        ({"moe_layer_freq": 2}, "a dense layer between mixtures (moe_layer_freq = 2) is not supported"),
        ({"norm_topk_prob": True}, "normalizing a softmax (norm_topk_prob = True) is not supported"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2, but latent attention needs one for each"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim must be even, but is 7"),
        ({"topk_method": "group_limited_greedy", "topk_group": 5}, "5 are chosen (topk_group)"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9, and only 8 experts can be chosen"),
    ],
)
def test_what_another_layer_would_need_is_named(changes: dict[str, Any], says: str) -> None:
    raw = {"model_type": "deepseek_v2", **latent_models.SIZES, **EXPERTS, **changes}
    with pytest.raises((UnsupportedModelError, CheckpointError), match=re.escape(says)):
        ModelConfig.from_huggingface(raw)


def _change(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_cosines_without_their_factor_show(tmp_path: Path, monkeypatch: Patch) -> None:
    def plain(config: ModelConfig) -> ModelConfig:
        assert config.rope.attention_factor != 1
        return replace(config, ropes=tuple(replace(rope, attention_factor=1.0) for rope in config.ropes))

    name = "query rank, YaRN, magnitudes that differ"
    assert min(compared(tmp_path, monkeypatch, name, plain)) > 0.1
