"""Exported models compute what transformers computes, whatever the checkpoint's files and biases are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bundles import export, random_ids, relative_error
from tests.reference import checkpoints
from transformers import AutoConfig, AutoModelForCausalLM

from h2o_runtime import Generator
from h2o_runtime.policies.prefill import Full

FULL = Full()
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
}

# Name -> family, changes to its transformers configuration, dtype of the checkpoint, shards.
MODELS: dict[str, tuple[str, dict[str, Any], torch.dtype, bool]] = {
    "one sharded llama layer in float16 with linear rope": (
        "llama",
        {"num_hidden_layers": 1, "num_key_value_heads": 4, "head_dim": 80, "rope_parameters": LINEAR},
        torch.float16,
        True,
    ),
    "llama in bfloat16 with all biases, tied": (
        "llama",
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "head_dim": 96,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
        torch.bfloat16,
        False,
    ),
}


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    """Models this small are slower on several threads, the more so when tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def save(folder: Path, name: str) -> Path:
    """A random checkpoint of MODELS."""
    family, changes, dtype, sharded = MODELS[name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SIZES, **changes}))
    checkpoints._fill(model, seed=3)
    model = model.to(dtype)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    model.save_pretrained(folder, max_shard_size=size // 3 if sharded else "50GB")
    assert len(list(folder.glob("*.safetensors"))) > 1 or not sharded
    for file in checkpoints.TOKENIZER_FILES:
        shutil.copy(checkpoints.EXAMPLE / file, folder / file)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_the_bundle_computes_what_transformers_computes(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path / "checkpoint", name)
    bundle = export(folder, tmp_path / "bundle")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = random_ids(90, vocab=512)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
    logprobs = torch.log_softmax(torch.from_numpy(expected), -1).numpy()[np.arange(89), ids[1:]]
    with Generator.load(bundle, context=128) as generator:
        assert generator.model.parameters == sum(p.numel() for p in theirs.parameters())
        np.testing.assert_allclose(generator.logprobs(ids, FULL), logprobs, atol=1e-4)
        assert relative_error(generator.prefill(ids, FULL), expected[-1]) < 1e-4
        generator.reset()
        generator.prefill(ids[:40], FULL)
        for position in range(40, 45):
            assert relative_error(generator.decode(int(ids[position])), expected[position]) < 1e-4
