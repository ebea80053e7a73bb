"""What the exporter needs to know of a model, read from a checkpoint's `config.json`."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.families import HEAD_SIZES, ROPE_TYPES, check_supported
from h2o_runtime.errors import CheckpointError, UnsupportedModelError
from h2o_runtime.limits import MAX_LAYERS, MAX_SIZE


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: base frequency and, where the checkpoint scales it, how."""

    theta: float
    kind: str = "default"  # one of families.ROPE_TYPES, or "factors"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    factors: tuple[float, ...] = ()  # of kind "factors", which no config.json has: a divisor for each pair

    def inverse_frequencies(self, head_size: int) -> NDArray[np.float32]:
        """Rotation per position of each pair, float32 [d/2]; Llama 3's rule is from its reference code."""
        # torch, in this very order of operations: one unit in the last place is felt at position 5,000.
        exponent = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
        frequencies = 1.0 / (self.theta**exponent)
        if self.kind == "factors":
            frequencies = 1.0 / (torch.tensor(self.factors) * self.theta**exponent)
        if self.kind == "linear":
            frequencies = frequencies / self.factor
        if self.kind == "llama3":
            frequencies = self._llama3(frequencies)
        inv_freq: NDArray[np.float32] = frequencies.numpy()
        return inv_freq

    def _llama3(self, frequencies: Tensor) -> Tensor:
        """Slow rotations are stretched by `factor`, fast ones kept, those between are blended."""
        turns = self.original_context / (2 * math.pi / frequencies)  # full turns within the original context
        span = self.high_freq_factor - self.low_freq_factor
        smooth = ((turns - self.low_freq_factor) / span).clamp(0.0, 1.0)
        blended: Tensor = (1.0 - smooth) * frequencies / self.factor + smooth * frequencies
        return blended


@dataclass(frozen=True)
class ModelConfig:
    """A decoder that this exporter can build. Sizes are numbers of elements."""

    family: str
    hidden_size: int
    layers: int
    query_heads: int
    kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool

    @classmethod
    def from_huggingface(cls, raw: dict[str, Any]) -> ModelConfig:
        """Read a parsed `config.json`.

        Raises UnsupportedModelError for a feature the exporter lacks, CheckpointError for a broken config.
        """
        family = check_supported(raw)
        query_heads = _integer(raw, "num_attention_heads")
        kv_heads = _integer(raw, "num_key_value_heads", query_heads)
        hidden = _integer(raw, "hidden_size")
        head_size = _integer(raw, "head_dim", family.default_head_size or hidden // query_heads)
        if query_heads % kv_heads:
            raise CheckpointError(
                f"config.json: num_attention_heads ({query_heads}) is no multiple of num_key_value_heads "
                f"({kv_heads}); the file is damaged or not of a decoder with grouped queries"
            )
        if head_size not in HEAD_SIZES:
            known = ", ".join(map(str, HEAD_SIZES))
            raise UnsupportedModelError(f"head size {head_size} is not supported; supported are {known}")
        return cls(
            family=family.model_type,
            hidden_size=hidden,
            layers=_integer(raw, "num_hidden_layers", most=MAX_LAYERS),
            query_heads=query_heads,
            kv_heads=kv_heads,
            head_size=head_size,
            intermediate_size=_integer(raw, "intermediate_size"),
            vocab_size=_integer(raw, "vocab_size"),
            rms_norm_eps=_number(raw, "rms_norm_eps", 1e-6),
            max_position_embeddings=_integer(raw, "max_position_embeddings", 2048, most=sys.maxsize),
            rope=_rope(raw),
            tied=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=family.qkv_bias or (family.bias_flags and bool(raw.get("attention_bias", False))),
            o_bias=family.bias_flags and bool(raw.get("attention_bias", False)),
            mlp_bias=family.bias_flags and bool(raw.get("mlp_bias", False)),
            qk_norm=family.qk_norm,
        )


def _integer(raw: dict[str, Any], key: str, default: int | None = None, most: int = MAX_SIZE) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"config.json: {key} must be a positive integer, but is {value!r}")
    if value > most:
        raise CheckpointError(f"config.json: {key} must be at most {most:,}, but is {value:,}")
    return value


def _number(raw: dict[str, Any], key: str, default: float | None = None) -> float:
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise CheckpointError(f"config.json: {key} must be a positive number, but is {value!r}")
    return float(value)


def _rope(raw: dict[str, Any]) -> RopeConfig:
    """Both spellings: transformers 5 keeps all in `rope_parameters`, earlier ones split it in two."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise CheckpointError(f"config.json: rope_parameters must be an object, but is {scaling!r}")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ROPE_TYPES:
        known = ", ".join(ROPE_TYPES)
        raise UnsupportedModelError(f"RoPE scaling '{kind}' is not supported; supported are {known}")
    theta = scaling.get("rope_theta", raw.get("rope_theta", 10000.0))
    rope = RopeConfig(theta=_number({"rope_theta": theta}, "rope_theta"))
    if kind == "linear":
        return RopeConfig(rope.theta, kind, factor=_number(scaling, "factor"))
    if kind == "llama3":
        return RopeConfig(
            rope.theta,
            kind,
            factor=_number(scaling, "factor"),
            low_freq_factor=_number(scaling, "low_freq_factor"),
            high_freq_factor=_number(scaling, "high_freq_factor"),
            original_context=_integer(scaling, "original_max_position_embeddings"),
        )
    return rope
