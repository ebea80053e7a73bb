"""Write a randomly initialised Llama checkpoint of a real model's shape, one shard a layer.

    python bench/random_checkpoint.py llama-3.2-1b FOLDER [--dtype bfloat16]

Speed and memory do not depend on the values of weights, so such a checkpoint stands in for the real one.
Tensors are drawn and written one shard at a time: memory stays at one layer plus the embedding.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

TOKENIZER = Path(__file__).parent.parent / "examples" / "tiny-llama"


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    query_heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocab: int
    context: int


SHAPES = {
    "smollm2-135m": Shape(576, 30, 9, 3, 64, 1536, 49152, 32768),
    "llama-3.2-1b": Shape(2048, 16, 32, 8, 64, 8192, 128256, 131072),
}


def layer_tensors(shape: Shape, layer: int, draw: torch.Generator) -> dict[str, torch.Tensor]:
    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=draw) * (columns**-0.5)

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


def shards(shape: Shape, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    yield {
        "model.embed_tokens.weight": torch.randn(shape.vocab, shape.hidden, generator=draw) * 0.02,
        "model.norm.weight": torch.ones(shape.hidden),
    }
    for layer in range(shape.layers):
        yield layer_tensors(shape, layer, draw)


def config(shape: Shape, dtype: str) -> dict[str, object]:
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
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": dtype,
    }


def write(name: str, folder: Path, dtype: str = "bfloat16", seed: int = 0) -> None:
    """Write the checkpoint with the example's tokenizer; `folder` must not exist."""
    shape = SHAPES[name]
    folder.mkdir(parents=True)
    weight_map, total = {}, 0
    for index, tensors in enumerate(shards(shape, seed)):
        file = f"model-{index:05d}.safetensors"
        stored = {key: tensor.to(getattr(torch, dtype)) for key, tensor in tensors.items()}
        save_file(stored, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(stored, file)
        total += sum(tensor.nbytes for tensor in stored.values())
    index_file = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_file))
    (folder / "config.json").write_text(json.dumps(config(shape, dtype), indent=2))
    for file in TOKENIZER.glob("*token*.json"):
        shutil.copyfile(file, folder / file.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    arguments = parser.parse_args()
    write(arguments.shape, arguments.folder, arguments.dtype)


if __name__ == "__main__":
    main()
