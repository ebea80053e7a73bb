"""The same weights as a GGUF file, for llama.cpp."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from h2o_export.architecture.config import ModelConfig

FILE = "model.gguf"


# llama.cpp's type with the same number of bits, by weight format; one scale for 32 integers.
_TYPES = {"float32": "F32", "float16": "F16", "int8": "Q8_0", "int4": "Q4_0"}
_HEADS = ("model.embed_tokens.weight", "lm_head.weight")


def write_gguf(checkpoint: Path, folder: Path, projections: str, head: str) -> None:
    """`projections` and `head` are formats of matrices, as a bundle names them.

    Raises ImportError without the package gguf, UnsupportedModelError for more than plain Llama.

    The file has no tokenizer: the benchmark speaks in token ids.
    """
    gguf: Any = importlib.import_module("gguf")

    from h2o_export.checkpoints import open_checkpoint
    from h2o_export.dense.graphs import checkpoint_tensors
    from h2o_runtime.errors import UnsupportedModelError

    opened = open_checkpoint(str(checkpoint))
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
    kinds = gguf.LlamaFileType
    writer.add_file_type(
        kinds.ALL_F32 if projections == "float32" else kinds[f"MOSTLY_{_TYPES[projections]}"]
    )

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c.layers)
    for source, shape in checkpoint_tensors(opened.plan).items():
        array = opened.tensor(source, shape).float().numpy()
        heads = {"q_proj": c.query_heads, "k_proj": c.kv_heads}.get(source.split(".")[-2])
        if heads is not None:
            array = pairs_side_by_side(array, heads)
        weight_type = "float32" if array.ndim == 1 else head if source in _HEADS else projections
        kind = gguf.GGMLQuantizationType[_TYPES[weight_type]]
        name = names.get_name(source, (".weight",))
        writer.add_tensor(name, gguf.quantize(array.astype(np.float32), kind), raw_dtype=kind)
    factors = rope_factors(c)
    if not np.allclose(factors, 1.0, rtol=1e-5):
        name = gguf.TENSOR_NAMES[gguf.MODEL_TENSOR.ROPE_FREQS]
        writer.add_tensor(f"{name}.weight", factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pairs_side_by_side(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows in llama.cpp's order: it rotates neighbouring elements, the checkpoint the two halves of a
    head.
    """
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def rope_factors(c: ModelConfig) -> NDArray[np.float64]:
    """Scaling of rotary embeddings as divisors of the plain frequencies, [d/2]."""
    exponent = np.arange(0, c.head_size, 2, dtype=np.float64) / c.head_size
    factors: NDArray[np.float64] = c.rope.theta**-exponent / c.rope.inverse_frequencies(c.head_size)
    return factors
