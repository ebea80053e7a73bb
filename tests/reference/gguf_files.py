"""GGUF files made of the random checkpoints, as llama.cpp's converter would write them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from safetensors.torch import load_file

from tests.reference import gguf_convolutions, gguf_gemma4, gguf_mamba, gguf_states

ARCHITECTURES = {
    "mistral": "llama",
    "qwen3_moe": "qwen3moe",
    "olmo3": "olmo2",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "lfm2_moe": "lfm2moe",
    "gpt_oss": "gpt-oss",
    "granitemoehybrid": "granitehybrid",
    "ministral3": "mistral3",
    "hunyuan_v1_dense": "hunyuan-dense",
}  # where llama.cpp has another name
LAYOUTS = (
    gguf_gemma4,
    gguf_states,
    gguf_convolutions,
    gguf_mamba,
)  # of architectures with more than other names
PLUS_ONE = ("gemma2", "gemma3")  # whose norms' weights its converter adds 1 to
NEIGHBOURS = (
    "llama",
    "mistral3",
    "smollm3",
    "granite",
    "granitehybrid",
    "nemotron_h",
    "nemotron_h_moe",
)  # whose rows of q and k its converter puts in another order
EXACT = re.compile(r"\.(ssm_(a|d|conv1d|norm)|shortconv\.conv)\b")  # in float32, whatever the file's type is
RANDOM = (Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL)  # the package only reads these

# What a converter writes of an architecture besides: key after its name -> word of config.json.
OWN = {
    "granite": {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
    "exaone4": {"attention.sliding_window": "sliding_window"},
    "olmo2": {"attention.sliding_window": "sliding_window"},
    "gemma2": {
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "gemma3": {
        "attention.sliding_window": "sliding_window",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "gpt-oss": {
        "attention.sliding_window": "sliding_window",
        "expert_count": "num_local_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "intermediate_size",
    },
    "qwen3moe": {
        "expert_count": "num_local_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
    },
}


def write(
    checkpoint: Path,
    path: Path,
    kind: Kind = Kind.F32,
    *,
    kinds: Mapping[str, Kind] = MappingProxyType({}),
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, NDArray[np.float32] | None] | None = None,
    tokenizer: bool = True,
    parts: int = 1,
) -> Path:
    """Write `path`, or parts beside it, and return the file to open. Matrices have the type `kind`.

    kinds: other types, by a part of the name that a matrix has in the file.
    metadata, tensors: added to what a converter writes, or in its place; with None, left out.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    family, weights = config["model_type"], load_file(checkpoint / "model.safetensors")
    architecture = ARCHITECTURES.get(family, family)
    if "moe" in config.get("layers_block_type", ()):
        architecture = "nemotron_h_moe"
    layout = next((one for one in LAYOUTS if architecture in one.ARCHITECTURES), None)
    layers = config.setdefault("num_hidden_layers", len(config.get("layers_block_type", ())))
    blocks = layers + config.get("mtp_num_hidden_layers", 0)
    names = gguf.get_tensor_name_map(_architecture(architecture), blocks)
    stored: dict[str, NDArray[np.float32] | None] = {}
    arrays = {name: tensor.float().numpy() for name, tensor in weights.items()}
    arrays = _apart(arrays) if layout is None else layout.arrays(arrays, config, architecture)
    own_metadata = {} if layout is None else layout.metadata(config, architecture)
    config["rope_parameters"] = config["rope_parameters"].get("full_attention", config["rope_parameters"])
    for name, array in _stacked(arrays).items():
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        if heads and architecture in NEIGHBOURS:
            array = _pairs_side_by_side(array, config[heads])
        if architecture in PLUS_ONE and name.endswith("norm.weight"):
            array = array + 1
        own = names.get_name(name, (".weight", ".bias"))
        own = name if name.startswith(("blk.", "rope_")) else own
        assert own is not None, name
        stored[f"{own}.weight" if own.endswith("sinks") else own] = array
    stored |= _long_factors(config) | (tensors or {})
    kept = {name: array for name, array in stored.items() if array is not None}
    count = -(-len(kept) // parts) if parts > 1 else 0
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=count)
    described = _metadata(config, architecture) | own_metadata
    described |= tokenizer_metadata(checkpoint) if tokenizer else {}
    for key, value in (described | (metadata or {})).items():
        if value is not None:
            add(writer, key, value)
    for name, array in kept.items():
        exact = name.endswith("bias") or EXACT.search(name)
        own_kind = next((kinds[part] for part in kinds if part in name), kind)
        stored_as = own_kind if array.ndim >= 2 and not exact else None
        if stored_as is not None and array.shape[-1] % gguf.GGML_QUANT_SIZES[stored_as][0]:
            stored_as = Kind.F16  # as llama.cpp does with rows that do not fit
        data = array if stored_as is None else quantized(array, stored_as)
        writer.add_tensor(name, data, raw_dtype=stored_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if parts == 1 else path.with_name(f"{path.stem}-00001-of-{parts:05d}.gguf")


def quantized(array: NDArray[np.float32], kind: Kind) -> NDArray[Any]:
    """Bytes of the type; where the package cannot make any, random ones whose scales are below 1. Rows of zeros
    are bytes of zeros.
    """
    if kind == Kind.F32:
        return array
    if kind not in RANDOM:
        with np.errstate(all="ignore"):  # it divides by subnormal scales
            made: NDArray[Any] = gguf.quantize(array, kind)
        return made
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = array.shape
    shape = rows, columns // block * size
    drawn = np.random.default_rng(rows).integers(0, 0x30, shape).astype(np.uint8)
    drawn[~array.any(axis=1)] = 0
    return drawn


def _architecture(name: str) -> Any:
    return next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)


def _long_factors(config: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    lists = {
        f"rope_factors_{one}.weight": config["rope_parameters"].get(f"{one}_factor")
        for one in ("long", "short")
    }
    return {name: np.array(factors, np.float32) for name, factors in lists.items() if factors}


def _long_metadata(config: dict[str, Any], name: str) -> dict[str, Any]:
    original = config["rope_parameters"].get("original_max_position_embeddings")
    if original is None:
        return {}
    said = {f"{name}.rope.scaling.original_context_length": original}
    if config["rope_parameters"]["rope_type"] == "yarn":
        return said
    scale = config["max_position_embeddings"] / original
    return said | {f"{name}.rope.scaling.attn_factor": math.sqrt(1 + math.log(scale) / math.log(original))}


def _scaling_metadata(rope: dict[str, Any], name: str) -> dict[str, Any]:
    if rope["rope_type"] not in ("linear", "yarn"):
        return {}
    said = {f"{name}.rope.scaling.type": rope["rope_type"], f"{name}.rope.scaling.factor": rope["factor"]}
    betas = {f"{name}.rope.scaling.yarn_{one}": rope.get(one) for one in ("beta_fast", "beta_slow")}
    grown = {
        f"{name}.rope.scaling.yarn_log_multiplier": rope.get("mscale_all_dim"),
        f"{name}.attention.temperature_scale": rope.get("llama_4_scaling_beta"),
    }
    factor = {f"{name}.rope.scaling.attn_factor": rope.get("attention_factor")}
    return said | betas | grown | factor


def _window_metadata(config: dict[str, Any], name: str) -> dict[str, Any]:
    if name != "gemma3":
        return {}
    types = config["layer_types"]
    return {f"{name}.attention.sliding_window_pattern": [one == "sliding_attention" for one in types]}


def _metadata(config: dict[str, Any], name: str) -> dict[str, Any]:
    rope = config["rope_parameters"]
    head_size = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    sizes = {f"{name}.attention.{one}_length": config.get("head_dim") for one in ("key", "value")}
    return {
        f"{name}.block_count": config["num_hidden_layers"],
        f"{name}.context_length": config["max_position_embeddings"],
        f"{name}.embedding_length": config["hidden_size"],
        f"{name}.feed_forward_length": config["intermediate_size"],
        f"{name}.attention.head_count": config["num_attention_heads"],
        f"{name}.attention.head_count_kv": config["num_key_value_heads"],
        **{key: size for key, size in sizes.items() if size},
        f"{name}.attention.layer_norm_rms_epsilon": _epsilon(config),
        f"{name}.rope.freq_base": float(rope["rope_theta"]),
        f"{name}.rope.dimension_count": int(head_size * rope.get("partial_rotary_factor", 1)),
        **_scaling_metadata(rope, name),
        **_window_metadata(config, name),
        **_long_metadata(config, name),
        f"{name}.vocab_size": config["vocab_size"],
        **{f"{name}.{key}": config.get(word) for key, word in OWN.get(name, {}).items()},
    }


def _epsilon(config: dict[str, Any]) -> float:
    words = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")
    return float(next(config[word] for word in words if config.get(word)))


def _apart(weights: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """gpt-oss' gates and ups, which take turns in its files, as matrices [E, out, in] and biases of their own."""
    found: dict[str, NDArray[np.float32]] = {}
    for name, array in weights.items():
        place = re.fullmatch(r"(.+\.experts)\.(gate_up|down)_proj(_bias)?", name)
        if place is None:
            found[name] = array
            continue
        stem, kind = place[1], "bias" if place[3] else "weight"
        rows = array if place[3] else array.swapaxes(1, 2)
        each = {"gate": rows[:, ::2], "up": rows[:, 1::2]} if place[2] == "gate_up" else {"down": rows}
        found |= {f"{stem}.{one}_proj.{kind}": np.ascontiguousarray(own) for one, own in each.items()}
    return found


def _stacked(weights: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """The matrices of all experts of a layer as one tensor [E, out, in], under the name that gguf's map knows."""
    found = {name: array for name, array in weights.items() if not re.search(r"\.experts\.\d", name)}
    experts: dict[str, dict[int, NDArray[np.float32]]] = {}
    for name in weights.keys() - found.keys():
        layer, _, rest = name.partition(".experts.")
        number, _, matrix = rest.partition(".")
        experts.setdefault(f"{layer}.experts.{matrix}", {})[int(number)] = weights[name]
    return found | {name: np.stack([own[e] for e in sorted(own)]) for name, own in sorted(experts.items())}


def tokenizer_metadata(checkpoint: Path) -> dict[str, Any]:
    raw = json.loads((checkpoint / "tokenizer.json").read_text())
    ids = dict(raw["model"]["vocab"]) | {token["content"]: token["id"] for token in raw["added_tokens"]}
    special = {token["content"] for token in raw["added_tokens"] if token["special"]}
    tokens = sorted(ids, key=lambda token: ids[token])
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in raw["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": (checkpoint / "chat_template.jinja").read_text(),
    }


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _pairs_side_by_side(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp's order of the rows of q and k, as its converter makes it."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))
