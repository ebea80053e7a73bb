"""Logits of random models are transformers', whatever config.json says, omits, or says in another way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bundles import export, random_ids, relative_error
from tests.family_models import save_as_said
from tests.random_configs import LLAMA3, OWN_SIZES, SIZES, YARN
from transformers import AutoModelForCausalLM

from h2o_runtime import Full, Generator

pytestmark = pytest.mark.slow

FULL = Full()
# What an ordinary reading of config.json gets wrong: model type and keys beside the sizes.
SAID: dict[str, dict[str, Any]] = {
    "an original context beside YaRN": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0},
        "original_max_position_embeddings": 32,
    },
    "two rotations": {"model_type": "qwen3", "rope_scaling": YARN, "rope_parameters": LLAMA3},
    "a rotation without its default": {
        "model_type": "ministral3",
        "rope_theta": 3e5,
        "rope_scaling": {**YARN, "llama_4_scaling_beta": 0.2, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "a base with a default rotation": {"model_type": "gpt_oss", "rope_theta": 1e4, "rope_scaling": None},
    "dynamic scaling": {"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "a window without layers": {
        "model_type": "smollm3",
        "use_sliding_window": True,
        "sliding_window": 20,
        "no_rope_layers": [1] * 4,
    },
    "a flag that Mistral has not": {
        "model_type": "mistral",
        "use_sliding_window": False,
        "sliding_window": 20,
    },
    "weights that always add up": {"model_type": "qwen3_5_moe_text", "norm_topk_prob": False},
    "tensor-parallel slices of a training": {"model_type": "smollm3", "pretraining_tp": 2},
    "a head that is tied by default": {"model_type": "youtu", "num_key_value_heads": 4},
}


# What the layers decide, not their configuration alone: test_export_config_defaults.py reads all of them.
OF_MODELS = ("a rotation without its default", "weights that always add up")


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what in OF_MODELS else pytest.mark.nightly) for what in SAID]
)
def test_what_is_said_in_another_way(tmp_path: Path, what: str) -> None:
    _compare(tmp_path, {**SIZES, **OWN_SIZES, **SAID[what]})


@torch.no_grad()
def _compare(folder: Path, raw: dict[str, Any]) -> None:
    checkpoint = save_as_said(folder / "checkpoint", raw)
    theirs = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    bundle = export(checkpoint, folder / "bundle")
    ids = random_ids(200, vocab=raw["vocab_size"])
    with Generator.load(bundle) as generator:
        for length in (30, 200):
            expected = theirs(torch.from_numpy(ids[:length])[None]).logits[0, -1].numpy()
            assert relative_error(generator.prefill(ids[:length], FULL), expected) < 1e-4
