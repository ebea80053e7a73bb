"""The configuration in a GGUF file's metadata, in the terms of a Hugging Face `config.json`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from gguf import dequantize
from numpy.typing import NDArray

from h2o_export.architecture.config import ModelConfig, RopeConfig
from h2o_export.architecture.families import FAMILIES
from h2o_export.architecture.families.base import FULL, SLIDING
from h2o_export.architecture.rope import SHARE
from h2o_export.checkpoints.gguf import latent
from h2o_export.checkpoints.gguf.architectures import (
    ARCHITECTURES,
    LOG_MULTIPLIER,
    TEMPERATURE,
    WINDOW,
    Architecture,
)
from h2o_export.checkpoints.gguf.header import Header
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = frozenset((ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS))

# (key after the architecture's name, key of config.json); a file without one of them is damaged.
_REQUIRED = (
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("block_count", "num_hidden_layers"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
)

# Settings that change a layer's arithmetic: (key, harmless values, description).
_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("expert_count", (None, 0), "mixture of experts"),
    (WINDOW, (None, 0), "sliding-window attention"),
    ("attention.causal", (None, True), "attention that is not causal"),
    ("attention.scale", (None, 0.0), "a scale of attention of its own"),
    ("attention.clamp_kqv", (None, 0.0), "clamped queries, keys and values"),
    (TEMPERATURE, (None, 0.0), "queries that grow with their position"),
    ("attn_logit_softcapping", (None, 0.0), "soft-capped attention"),
    ("final_logit_softcapping", (None, 0.0), "soft-capped logits"),
    ("logit_scale", (None, 0.0, 1.0), "scaled logits"),
    ("embedding_scale", (None, 0.0, 1.0), "scaled embeddings"),
    ("residual_scale", (None, 0.0, 1.0), "a scaled residual stream"),
)


def architecture(header: Header) -> str:
    """A key of `ARCHITECTURES`. Raises UnsupportedModelError for any other."""
    name, kind = header.metadata.get("general.architecture"), header.metadata.get("general.type", "model")
    if not isinstance(name, str):
        raise CheckpointError(f"{header.path}: its metadata have no architecture; download it again")
    if kind != "model":
        raise UnsupportedModelError(
            f"{header.path}: is the {kind!r} of a model, not a model; give the model's file"
        )
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModelError(
            f"{header.path}: architecture '{name}' is not supported; supported are {known}"
        )
    return name


def huggingface_config(header: Header) -> dict[str, Any]:
    """The `config.json` of the model. A tensor of RoPE factors has no key there: `rope_factors` reads it.

    Raises CheckpointError for missing metadata, UnsupportedModelError for settings that change a layer's
    arithmetic.
    """
    name = architecture(header)
    known = ARCHITECTURES[name]

    def value(key: str) -> Any:
        return header.metadata.get(f"{name}.{key}")

    for key, harmless, what in _REFUSED:
        if key == WINDOW and _covers(value(key), value("context_length")):
            continue  # every key is inside the window
        if value(key) not in harmless and key not in known.allowed:
            raise UnsupportedModelError(
                f"{header.path}: {what} ({name}.{key} = {value(key)!r}) is not supported"
            )
    raw: dict[str, Any] = {"model_type": known.model_type}
    for key, word in (*_REQUIRED, *known.required):
        if value(key) is None:
            raise CheckpointError(f"{header.path}: its metadata lack {name}.{key}; download it again")
        raw[word] = value(key)
    if name == latent.NAME:
        raw |= latent.latent_config(header, raw, value)
        rotated: dict[str, Any] = {}
    else:
        raw["num_key_value_heads"] = value("attention.head_count_kv")
        raw["head_dim"], rotated = _head_size(header, raw, value)
        raw |= known.own(value)
    raw["architectures"] = [FAMILIES[raw["model_type"]].architecture]
    raw["sliding_window"] = value(WINDOW) or None
    raw["vocab_size"] = _rows(header, "token_embd.weight")
    rope = _rope(header, value, known, name == latent.NAME) | rotated | known.rope(value)
    raw["rope_parameters"] = _by_layer(rope, value, known)
    raw["tie_word_embeddings"] = "output.weight" not in header.tensors
    raw["attention_bias"] = any(f"blk.0.{own}.bias" in header.tensors for own in ("attn_q", "attn_kv_a_mqa"))
    raw["mlp_bias"] = "blk.0.ffn_gate.bias" in header.tensors
    return raw


def _by_layer(rope: dict[str, Any], value: Any, known: Architecture) -> dict[str, Any]:
    """`rope` itself, or the rotation of each kind of layer if layers with a window have their own."""
    if known.window_base is None:
        return rope
    base = value("rope.freq_base_swa")
    local = {"rope_type": "default", "rope_theta": known.window_base if base is None else base}
    return {FULL: rope, SLIDING: local}


def _covers(window: Any, context: Any) -> bool:
    return isinstance(window, int) and isinstance(context, int) and window >= context > 0


def model_config(header: Header, raw: dict[str, Any]) -> ModelConfig:
    """The exporter's configuration; `raw` is the result of `huggingface_config`. Raises as `from_huggingface`
    does.
    """
    try:
        config = ModelConfig.from_huggingface(raw)
    except (CheckpointError, UnsupportedModelError) as error:
        raise type(error)(f"{header.path}: {str(error).replace('config.json: ', 'its metadata: ')}") from None
    factors = _rope_factors(header, ROPE_FACTORS, config.rotated_size)
    if factors is None or np.all(factors == 1):
        return config
    scaled = [rope.kind for rope in config.ropes if rope.kind != "default"]
    if scaled:
        raise UnsupportedModelError(
            f"{header.path}: {ROPE_FACTORS} and RoPE scaling '{scaled[0]}' together are not supported"
        )
    given = tuple(factors.tolist())
    return replace(
        config, ropes=tuple(RopeConfig(rope.theta, "factors", factors=given) for rope in config.ropes)
    )


def _rope_factors(header: Header, name: str, rotated: int | None = None) -> NDArray[np.float32] | None:
    """The divisors of RoPE's frequencies, float32 [rotated / 2], which store Llama 3's scaling. None: the
    file has no such tensor.
    """
    stored = header.tensors.get(name)
    if stored is None:
        return None
    if rotated is not None and stored.shape != (rotated // 2,):
        raise CheckpointError(
            f"{header.path}: {name} has shape {list(stored.shape)}, but heads of {rotated} elements "
            f"have {rotated // 2} frequencies; download it again"
        )
    data = np.fromfile(stored.path, np.uint8, stored.length, offset=stored.offset)
    factors: NDArray[np.float32] = dequantize(data, stored.kind)
    if not np.all(np.isfinite(factors) & (factors > 0)):
        raise CheckpointError(f"{header.path}: {name} must hold positive numbers; download it again")
    return factors


def _head_size(header: Header, raw: dict[str, Any], value: Any) -> tuple[int | None, dict[str, Any]]:
    """Elements of a head, None if hidden size / heads gives it; and the share of them that is rotated."""
    partly = FAMILIES[raw["model_type"]].default_rotated is not None
    size, of_v, rotated = (
        value(key) for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")
    )
    size = size or (None if partly else rotated)
    heads, hidden = raw["num_attention_heads"], raw["hidden_size"]
    if size is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        size = hidden // heads
    if (of_v or size) != size:
        raise UnsupportedModelError(
            f"{header.path}: keys of {size} elements and values of {of_v} are not supported"
        )
    whole = int(size) if isinstance(size, int) else None
    if partly and whole and isinstance(rotated, int):
        return whole, {SHARE: rotated / whole}
    if (rotated or size) != size:
        raise UnsupportedModelError(
            f"{header.path}: partial rotary embedding ({rotated} of {size} elements) is not supported"
        )
    return whole, {}


def _rows(header: Header, name: str) -> int:
    stored = header.tensors.get(name)
    if stored is None or len(stored.shape) != 2:
        raise CheckpointError(f"{header.path}: no matrix {name!r} in it; download it again")
    return stored.shape[0]


def _rope(header: Header, value: Any, known: Architecture, latents: bool) -> dict[str, Any]:
    base = value("rope.freq_base")
    theta = 10000.0 if base is None else base
    if LONG_FACTORS in header.tensors:
        return {"rope_type": "longrope", "rope_theta": theta} | _longrope(header, value)
    factor = value("rope.scaling.factor") or value("rope.scale_linear") or 1.0
    kind = value("rope.scaling.type") or "linear"  # llama.cpp's default; a factor of 1 means no scaling
    if kind == "none" or (kind == "linear" and factor == 1):
        return {"rope_type": "default", "rope_theta": theta}
    scaling = {"rope_type": kind, "rope_theta": theta, "factor": factor}
    return scaling | _yarn(header, value, known, latents) if kind == "yarn" else scaling


def _longrope(header: Header, value: Any) -> dict[str, Any]:
    """llama.cpp multiplies by the factor in the file, or by 1 if there is none."""
    long, short = (_rope_factors(header, name) for name in (LONG_FACTORS, SHORT_FACTORS))
    return {
        "long_factor": None if long is None else long.tolist(),
        "short_factor": None if short is None else short.tolist(),
        "original_max_position_embeddings": value("rope.scaling.original_context_length"),
        "attention_factor": value("rope.scaling.attn_factor") or 1.0,
    }


def _yarn(header: Header, value: Any, known: Architecture, latents: bool) -> dict[str, Any]:
    """YaRN's settings besides its factor. Raises if the file lacks one, or has a setting that is not
    supported.
    """
    original = value("rope.scaling.original_context_length")
    if original is None:
        raise CheckpointError(
            f"{header.path}: RoPE is scaled by YaRN, and its metadata lack "
            "rope.scaling.original_context_length; download it again"
        )
    for key in ("attn_factor", LOG_MULTIPLIER, "yarn_ext_factor", "yarn_attn_factor"):
        if value(f"rope.scaling.{key}") is not None and f"rope.scaling.{key}" not in known.allowed:
            raise UnsupportedModelError(f"{header.path}: YaRN with rope.scaling.{key} is not supported")
    betas = {name: value(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
    factors = latent.yarn_factors(value) if latents else {}
    return {"original_max_position_embeddings": original, **betas, **factors}
