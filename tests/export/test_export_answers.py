"""Hybrids and families of odd sizes beside transformers: long answers, prompt pieces, reuse, int8 and int4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.bundles import export, random_ids, relative_error
from tests.family_mamba import NEMOTRON_H
from tests.family_models import MODELS, VOCAB, save
from tests.family_settings import ERNIE_EXPERTS
from transformers import AutoModelForCausalLM

from h2o_runtime import Generator
from h2o_runtime.policies.prefill import Full

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

FULL = Full()
PIECES = 37, 129, 71  # tokens that each prompt reads beyond the one before
LENGTH, ANSWER = sum(PIECES), 40
# Of random weights, in nats: 4 bits hold them worse than trained ones, and rounding may choose other experts.
KL = {"int8": 0.05, "int4": 2.0}
KL_OF_EXPERTS = {"int8": 0.2, "int4": 2.0}
TYPES = ("lfm2", "lfm2_moe", "granitemoehybrid", "nemotron_h", "ernie4_5", "ernie4_5_moe", "hunyuan_v1_dense")
MIXED = MODELS["nemotron_h-mixed"][1]
LATENT = {
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "num_key_value_heads": 4,
}
ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "nemotron_h-mixed-last": (
        "nemotron_h",
        {
            **MIXED,
            "layers_block_type": ["full_attention", "linear_attention", "mlp", "linear_attention", "moe"],
        },
    ),
    "nemotron_h-mixed-one-group": (
        "nemotron_h",
        {**NEMOTRON_H, **MIXED, "n_groups": 1, "n_group": 1, "num_experts_per_tok": 3, "n_routed_experts": 5},
    ),
    "ernie4_5-wide": (
        "ernie4_5",
        {"num_hidden_layers": 3, "hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 3},
    ),
    "ernie4_5_moe-narrow": (
        "ernie4_5_moe",
        {
            "num_hidden_layers": 3,
            "hidden_size": 40,
            "num_key_value_heads": 1,
            "head_dim": 24,
            **ERNIE_EXPERTS,
        },
    ),
    "hunyuan-odd": (
        "hunyuan_v1_dense",
        {"num_hidden_layers": 3, "hidden_size": 72, "num_attention_heads": 3, "head_dim": 56},
    ),
    "glm4_moe_lite": ("glm4_moe_lite", {"num_hidden_layers": 3, **LATENT}),
    "glm4_moe_lite-named": (
        "glm4_moe_lite",
        {
            **LATENT,
            "num_hidden_layers": 3,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "q_lora_rank": None,
            "norm_topk_prob": False,
        },
    ),
    "glm4_moe_lite-dense": (
        "glm4_moe_lite",
        {**LATENT, "num_hidden_layers": 2, "hidden_size": 40, "mlp_layer_types": ["dense"] * 2},
    ),
}
ALL = {name: one for name, one in MODELS.items() if one[0] in TYPES} | ODD


@pytest.mark.parametrize("name", ALL)
def test_answers_pieces_reuse_and_integers(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path / "checkpoint", name, ALL)
    ids = random_ids(LENGTH, vocab=VOCAB)
    logits, answer = theirs(folder, ids)
    with Generator.load(export(folder, tmp_path / "float", context=512)) as generator:
        for stop in np.cumsum(PIECES):
            found = generator.prefill(ids[:stop], FULL)
            assert relative_error(found, logits[stop - 1]) < 1e-4
        assert greedy(generator, found) == answer
        other = np.concatenate((ids[:100], random_ids(60, seed=1, vocab=VOCAB)))
        reused = generator.prefill(other, FULL).copy()  # begins as the text that the session has
        assert relative_error(reused, generator.prefill(other, FULL, reuse=False)) < 1e-5
    limits = KL_OF_EXPERTS if generator.model.experts else KL
    for weights, most in limits.items():
        bundle = export(folder, tmp_path / weights, context=512, weights=weights, calibrated=True)
        with Generator.load(bundle) as generator:
            rows = np.concatenate([rows for _, rows in generator.each_logits(ids, FULL)])
        assert np.isfinite(rows).all()
        assert divergence(logits, rows) < most


@torch.inference_mode()
def theirs(folder: Path, ids: NDArray[np.int64]) -> tuple[NDArray[np.float32], list[int]]:
    """Logits after each token, and the greedy answer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = torch.from_numpy(ids)[None]
    said = model.generate(prompt, max_new_tokens=ANSWER, do_sample=False, eos_token_id=None, pad_token_id=0)
    return model(prompt).logits[0].numpy(), said[0, len(ids) :].tolist()


def greedy(generator: Generator, logits: NDArray[np.float32]) -> list[int]:
    tokens = []
    for _ in range(ANSWER):
        tokens.append(int(logits.argmax()))
        logits = generator.decode(tokens[-1])
    return tokens


def divergence(exact: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """Mean Kullback-Leibler divergence of the next token, in nats."""
    p, q = (torch.from_numpy(one).double().log_softmax(dim=-1) for one in (exact, found))
    return float((p.exp() * (p - q)).sum(dim=-1).mean())
