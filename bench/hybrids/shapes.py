"""Random models of hybrids' shapes, cut to a few layers: a GGUF file, and a bundle of the same integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType as Kind
from tests import bundles, family_models
from tests.reference import gguf_files

CONTEXT, VOCAB = 16384, 4096
STATE, CONVOLUTION, FULL = "linear_attention", "conv", "full_attention"
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,  # that of the example's tokenizer; its head is small beside the layers
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
}
GRANITE: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 8,
    "layer_types": [*5 * [STATE], FULL, STATE, STATE],
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "intermediate_size": 2048,
    "shared_intermediate_size": 2048,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "mamba_n_heads": 48,
    "mamba_d_head": 32,
    "mamba_d_state": 128,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.246,
    "attention_multiplier": 0.015625,
    "logits_scaling": 3.0,
}
LFM2: dict[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 6,
    "layer_types": [CONVOLUTION, CONVOLUTION, FULL, CONVOLUTION, CONVOLUTION, FULL],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "block_auto_adjust_ff_dim": False,
}
QWEN: dict[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 4,
    "layer_types": [*3 * [STATE], FULL],
    "intermediate_size": 6144,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
# Name -> family and settings. The share of layers with attention is near the whole model's.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "Granite-4-H-350M": ("granitemoehybrid", {**COMMON, **GRANITE}),
    "LFM2.5-1.2B": ("lfm2", {**COMMON, **LFM2}),
    "Qwen3.5-2B": ("qwen3_5_text", {**COMMON, **QWEN}),
}


def make(folder: Path, name: str) -> tuple[Path, Path]:
    """The model's GGUF file (Q8_0) and bundle (int8) below `folder`; those that are there are kept."""
    folder = folder / name
    file, bundle = folder / "model.gguf", folder / "bundle"
    if not bundle.exists():
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = family_models.save(folder / "checkpoint", name, SHAPES)
        gguf_files.write(checkpoint, file, Kind.Q8_0)
        bundles.export(file, bundle, context=CONTEXT, weights="int8")
    return file, bundle
