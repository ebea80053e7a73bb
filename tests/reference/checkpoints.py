"""Tiny random checkpoints, made on the fly with transformers.

Their weights are scaled so that tests can fail: attention logits have a spread of about 2, so softmax is
neither uniform nor one-hot; norm weights and biases differ from 1 and 0; and the next-token logits have a
spread of about 3, so the greedy token is rarely a near-tie.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-llama"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
TOKENIZER_VOCAB = 4096

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Small, so that a short test prompt already reaches the stretched wavelengths.
    "original_max_position_embeddings": 512,
}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

# Name -> arguments of make_checkpoint. In a name, g4 is 4 query heads a key/value head; d32 the head size.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-g1-d32": {"family": "llama", "query_heads": 4, "kv_heads": 4, "head_dim": 32, "tied": False},
    "llama-g2-d64-llama3": {
        "family": "llama",
        "query_heads": 4,
        "kv_heads": 2,
        "head_dim": 64,
        "tied": True,
        "rope": "llama3",
    },
    "llama-g8-d64": {"family": "llama", "query_heads": 8, "kv_heads": 1, "head_dim": 64, "tied": False},
    "mistral-g4-d128": {"family": "mistral", "query_heads": 4, "kv_heads": 1, "head_dim": 128, "tied": False},
    "llama-g2-d48": {"family": "llama", "query_heads": 4, "kv_heads": 2, "head_dim": 48, "tied": True},
    "llama-g2-d100": {"family": "llama", "query_heads": 2, "kv_heads": 1, "head_dim": 100, "tied": False},
    "qwen2-g4-d32": {"family": "qwen2", "query_heads": 8, "kv_heads": 2, "head_dim": 32, "tied": True},
    "qwen3-g2-d128": {"family": "qwen3", "query_heads": 4, "kv_heads": 2, "head_dim": 128, "tied": True},
}


def make_checkpoint(
    folder: str | Path,
    family: Literal["llama", "mistral", "qwen2", "qwen3"] = "llama",
    *,
    hidden: int = 64,
    layers: int = 2,
    query_heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    tied: bool = False,
    rope: Literal["default", "llama3"] = "default",
    vocab: int = TOKENIZER_VOCAB,
    seed: int = 0,
    dtype: Literal["float32", "float16"] = "float32",
    sharded: bool = False,
    max_position_embeddings: int = 4096,
) -> Path:
    """Save a random model to `folder` and return it.

    The tokenizer is the example checkpoint's; a vocabulary too small for it is saved without one.
    `head_dim` need not be hidden / query_heads, for any of the families.
    """
    folder = Path(folder)
    extra: dict[str, Any] = {}
    if family == "mistral":
        extra["sliding_window"] = None  # its default is a window of 4096
    config = AutoConfig.for_model(
        family,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=hidden * 2 + 32,
        num_hidden_layers=layers,
        num_attention_heads=query_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        tie_word_embeddings=tied,
        rope_parameters=dict(LLAMA3_ROPE if rope == "llama3" else DEFAULT_ROPE),
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=1e-5,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
        **extra,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    _fill(model, seed)
    model = model.to(getattr(torch, dtype))
    limit: int | str = "50GB"
    if sharded:
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        limit = size // 3
    model.save_pretrained(folder, max_shard_size=limit)
    if vocab >= TOKENIZER_VOCAB:
        for name in TOKENIZER_FILES:
            shutil.copy(EXAMPLE / name, folder / name)
    return folder


def make_named(folder: str | Path, name: str, **changes: Any) -> Path:
    """The checkpoint of SHAPES[name], some arguments changed."""
    return make_checkpoint(folder, **{**SHAPES[name], **changes})


@torch.no_grad()
def _fill(model: PreTrainedModel, seed: int) -> None:
    """Random weights from `seed` alone, every matrix with the spread that its place asks for."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    spread_of_logits = 3.0
    # Tied heads read the embedding, so its spread follows from the logits; the layers then add as much.
    stream = spread_of_logits / math.sqrt(config.hidden_size) if config.tie_word_embeddings else 1.0
    qk_spread = math.sqrt(2.0)  # of q and k entries; q·k/sqrt(d) then has spread 2
    for name, parameter in model.named_parameters():  # a tied head is not listed twice
        noise = torch.randn(parameter.shape, generator=generator)
        fan_in = math.sqrt(parameter.shape[-1])
        if name.endswith(".bias"):
            value = 0.3 * noise
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            value = qk_spread * (1 + 0.2 * noise)
        elif "norm" in name:
            value = 1 + 0.2 * noise
        elif "embed_tokens" in name:
            value = stream * noise
        elif "lm_head" in name:
            value = spread_of_logits / fan_in * noise
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            value = qk_spread / fan_in * noise
        elif name.endswith("v_proj.weight"):
            value = noise / fan_in
        else:  # o_proj, gate, up, down: averaging over keys shrinks the output, so it is brought back up
            value = (
                (2 * stream if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0) / fan_in * noise
            )
        parameter.copy_(value)
