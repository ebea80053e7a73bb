"""The same weights as a GGUF file, for llama.cpp."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = "model.gguf"

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_gguf(checkpoint: Path, folder: Path, dtype: str) -> None:
    """Raises ImportError without the package gguf, UnsupportedModelError for more than plain Llama.

    The file has no tokenizer: the benchmark speaks in token ids.
    """
    gguf: Any = importlib.import_module("gguf")

    from h2o_export.checkpoint import Checkpoint
    from h2o_runtime.errors import UnsupportedModelError

    opened = Checkpoint.open(str(checkpoint))
    c = opened.config
    if c.qkv_bias or c.o_bias or c.mlp_bias or c.qk_norm:
        raise UnsupportedModelError(f"only plain Llama weights are written as GGUF, not those of {c.family}")
    writer = gguf.GGUFWriter(folder / FILE, "llama")
    writer.add_name("h2o-bench")
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.query_heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_key_length(c.head_size)
    writer.add_value_length(c.head_size)
    writer.add_rope_dimension_count(c.head_size)
    writer.add_rope_freq_base(c.rope.theta)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    half = dtype == "float16"
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.ALL_F32)

    q, kv, d = c.query_heads * c.head_size, c.kv_heads * c.head_size, c.hidden_size
    sizes: dict[str, tuple[int, ...]] = {
        "attn_norm": (d,),
        "attn_q": (q, d),
        "attn_k": (kv, d),
        "attn_v": (kv, d),
        "attn_output": (d, q),
        "ffn_norm": (d,),
        "ffn_gate": (c.intermediate_size, d),
        "ffn_up": (c.intermediate_size, d),
        "ffn_down": (d, c.intermediate_size),
    }
    heads = {"attn_q": c.query_heads, "attn_k": c.kv_heads}

    def add(name: str, source: str, shape: tuple[int, ...]) -> None:
        array = opened.tensor(source, shape).float().numpy()
        part = name.split(".")[-2]
        if part in heads:
            array = pairs_side_by_side(array, heads[part])
        stored = array.astype(np.float16 if half and array.ndim == 2 else np.float32)
        writer.add_tensor(name, stored)

    add("token_embd.weight", "model.embed_tokens.weight", (c.vocab_size, d))
    add("output_norm.weight", "model.norm.weight", (d,))
    if not c.tied:
        add("output.weight", "lm_head.weight", (c.vocab_size, d))
    for layer in range(c.layers):
        for name, source in _LAYER_NAMES.items():
            add(f"blk.{layer}.{name}.weight", f"model.layers.{layer}.{source}.weight", sizes[name])
    _add_rope_factors(writer, c)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pairs_side_by_side(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows in llama.cpp's order: it rotates neighbouring elements, the checkpoint the two halves of a head."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def _add_rope_factors(writer: Any, config: Any) -> None:
    """Scaled rotary embeddings as factors of the plain frequencies."""
    exponent = np.arange(0, config.head_size, 2, dtype=np.float64) / config.head_size
    factors = config.rope.theta**-exponent / config.rope.inverse_frequencies(config.head_size)
    if not np.allclose(factors, 1.0, rtol=1e-5):
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
