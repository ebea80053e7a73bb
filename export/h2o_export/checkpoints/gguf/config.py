"""The configuration in a GGUF file's metadata, in the terms of a Hugging Face `config.json`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from h2o_export.architecture.config import ModelConfig, RopeConfig
from h2o_export.architecture.families import FAMILIES
from h2o_export.architecture.families.family import FULL, SLIDING
from h2o_export.architecture.rope import ORIGINAL, SHARE
from h2o_export.checkpoints.gguf import latent, rope
from h2o_export.checkpoints.gguf.architectures import ARCHITECTURES, TEMPERATURE, WINDOW, Architecture
from h2o_export.checkpoints.gguf.header import Header, Metadata
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

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
    known, value = ARCHITECTURES[name], Metadata(header, name)
    for key, harmless, what in _REFUSED:
        if key == WINDOW and _covers(value(key), value("context_length")):
            continue  # every key is inside the window
        if value(key) not in harmless and key not in known.allowed:
            raise UnsupportedModelError(
                f"{header.path}: {what} ({name}.{key} = {value(key)!r}) is not supported"
            )
    raw: dict[str, Any] = {"model_type": known.model_type}
    for key, word in (*_REQUIRED, *known.required):
        if value(key) is None and key not in known.optional:
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
    angles = rope.rotation(value, known.allowed) | rotated | known.rope(value)
    if ORIGINAL in angles:  # where it comes before a family's default
        raw[ORIGINAL] = angles[ORIGINAL] or raw["max_position_embeddings"]
    raw["rope_parameters"] = _by_layer(angles, value, raw["model_type"], known)
    raw["tie_word_embeddings"] = "output.weight" not in header.tensors
    raw["attention_bias"] = any(
        name.endswith(("attn_q.bias", "attn_kv_a_mqa.bias")) for name in header.tensors
    )
    raw["mlp_bias"] = any(name.endswith((".ffn_gate.bias", ".ffn_up.bias")) for name in header.tensors)
    return raw


def _by_layer(
    angles: dict[str, Any], value: Metadata, model_type: str, known: Architecture
) -> dict[str, Any]:
    """`angles` itself, or the rotation of each kind of layer if layers with a window have their own."""
    if not FAMILIES[model_type].named_rotations:
        return angles
    base = value("rope.freq_base_swa")
    base = (known.window_base or angles.get("rope_theta")) if base is None else base
    local = {"rope_type": "default", **({} if base is None else {"rope_theta": base})}
    return {FULL: angles, SLIDING: local}


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
    value = Metadata(header, architecture(header))
    if ARCHITECTURES[value.name].stopped_pairs:
        return config
    factors = rope.factors(value, rope.FACTORS, config.rotated_size)
    if factors is None or np.all(factors == 1):
        return config
    scaled = [rope.kind for rope in config.ropes if rope.kind != "default"]
    if scaled:
        raise UnsupportedModelError(
            f"{header.path}: {rope.FACTORS} and RoPE scaling '{scaled[0]}' together are not supported"
        )
    given = tuple(factors.tolist())
    return replace(
        config, ropes=tuple(RopeConfig(rope.theta, "factors", factors=given) for rope in config.ropes)
    )


def _head_size(header: Header, raw: dict[str, Any], value: Metadata) -> tuple[int | None, dict[str, Any]]:
    """Elements of a head, None if hidden size / heads gives it; and the share of them that is rotated."""
    partly = FAMILIES[raw["model_type"]].partly_rotated
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
