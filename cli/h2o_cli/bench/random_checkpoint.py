"""Randomly initialised Llama checkpoints of a real model's shape, one shard a layer.

Tensors are drawn and written one shard at a time: memory stays at one layer plus the embedding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from h2o_cli.bench.shapes import Shape


def layer_tensors(shape: Shape, layer: int, draw: torch.Generator) -> dict[str, torch.Tensor]:
    def matrix(rows: int, columns: int) -> torch.Tensor:
        drawn: torch.Tensor = torch.randn(rows, columns, generator=draw) * (columns**-0.5)
        return drawn

    q, kv = shape.query_heads * shape.head_size, shape.kv_heads * shape.head_size
    tensors = {
        "input_layernorm.weight": torch.ones(shape.hidden),
        "post_attention_layernorm.weight": torch.ones(shape.hidden),
        "self_attn.q_proj.weight": matrix(q, shape.hidden),
        "self_attn.k_proj.weight": matrix(kv, shape.hidden),
        "self_attn.v_proj.weight": matrix(kv, shape.hidden),
        "self_attn.o_proj.weight": matrix(shape.hidden, q),
        "mlp.gate_proj.weight": matrix(shape.intermediate, shape.hidden),
        "mlp.up_proj.weight": matrix(shape.intermediate, shape.hidden),
        "mlp.down_proj.weight": matrix(shape.hidden, shape.intermediate),
    }
    return {f"model.layers.{layer}.{name}": tensor for name, tensor in tensors.items()}


def shards(shape: Shape) -> Iterator[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    yield {
        "model.embed_tokens.weight": torch.randn(shape.vocab, shape.hidden, generator=draw) * 0.02,
        "model.norm.weight": torch.ones(shape.hidden),
    }
    for layer in range(shape.layers):
        yield layer_tensors(shape, layer, draw)


def config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.query_heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def write(shape: Shape, folder: Path) -> None:
    """Write the checkpoint with a byte-level tokenizer; `folder` must exist and be empty."""
    weight_map: dict[str, str] = {}
    total = 0
    for index, tensors in enumerate(shards(shape)):
        file = f"model-{index:05d}.safetensors"
        stored = {key: tensor.to(torch.bfloat16) for key, tensor in tensors.items()}
        save_file(stored, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(stored, file)
        total += sum(tensor.nbytes for tensor in stored.values())
    index_file = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_file))
    (folder / "config.json").write_text(json.dumps(config(shape), indent=2))
    _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    """Every byte is a token: enough for programs that refuse a model without a tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<s>", "</s>", *alphabet]
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
