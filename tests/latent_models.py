"""Tiny models with latent attention: those of the golden data, and others made with transformers."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

from tests import bundles
from tests.reference.checkpoints import EXAMPLE, TOKENIZER_FILES
from tests.reference.golden import GOLDEN

MODELS = ("v2_noqlora_yarn", "v3_qlora_default", "v3_yarn_moe")

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
EXPERTS = {
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_group": 4,
    "topk_group": 2,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


def arrays(name: str) -> dict[str, NDArray[Any]]:
    """The golden arrays of a model by their names; cached latents as [layers, n, r + dr]."""
    found = {path.stem: np.load(path) for path in (GOLDEN / "mla_tiny" / name).glob("*.npy")}
    parts = [found["cache_c_kv_prefill"], found["cache_k_rope_prefill"]]
    return found | {"latents": np.concatenate(parts, axis=-1)}


def golden_checkpoint(root: Path, name: str) -> Path:
    """A copy of a golden model with a tokenizer, made below `root` by whoever comes first."""
    folder = root / f"checkpoint-{name}"
    source = GOLDEN / "mla_tiny" / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            for file in ("config.json", "model.safetensors"):
                shutil.copy(source / file, folder / file)
            _add_tokenizer(folder)
    return folder


def golden_bundle(root: Path, name: str) -> Path:
    checkpoint, bundle = golden_checkpoint(root, name), root / f"bundle-{name}"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not bundle.exists():
            bundles.export(checkpoint, bundle)
    return bundle


def make(folder: Path, model_type: str, **settings: Any) -> Any:
    """Save a random model of transformers to `folder` and return it."""
    config = AutoConfig.for_model(model_type, **{**SIZES, **settings})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in (*model.named_parameters(), *model.named_buffers()):
            noise = torch.randn(parameter.shape, generator=draw)
            if "norm" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif name.endswith(("bias", "e_score_correction_bias")):
                parameter.copy_(0.3 * noise)
            elif "inv_freq" not in name:
                plain = "embed" in name and not config.tie_word_embeddings
                parameter.copy_(noise * (1.0 if plain else 1.4 / parameter.shape[-1] ** 0.5))
    model.save_pretrained(folder)
    _add_tokenizer(folder)
    return model.eval()


def _add_tokenizer(folder: Path) -> None:
    for file in TOKENIZER_FILES:
        shutil.copy(EXAMPLE / file, folder / file)
