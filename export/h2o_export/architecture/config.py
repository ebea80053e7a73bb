"""What the exporter needs to know of a model, read from a checkpoint's `config.json`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

from h2o_export.architecture.experts import ExpertsConfig
from h2o_export.architecture.families import Family, find_family
from h2o_export.architecture.families.base import LLAMA_NORMS, NO_MULTIPLIERS, Multipliers, Norms
from h2o_export.architecture.latent import LatentConfig
from h2o_export.architecture.rope import RopeConfig, read_rope
from h2o_export.architecture.values import integer, number
from h2o_runtime.errors import CheckpointError, UnsupportedModelError
from h2o_runtime.limits import MAX_LAYERS

__all__ = ["ExpertsConfig", "LatentConfig", "ModelConfig", "RopeConfig"]

HEAD_SIZES = (32, 64, 80, 96, 128)


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
    qk_norm: (
        Literal["head", "projection"] | None
    )  # RMSNorm of q and k: of each head, or of all heads together
    kinds: tuple[str, ...]  # of every layer: a key of h2o_export.layers.LAYERS
    norms: Norms = LLAMA_NORMS
    multipliers: Multipliers = NO_MULTIPLIERS
    latent: LatentConfig | None = None  # of layers whose cache holds latents; then head_size is that of q
    experts: ExpertsConfig | None = None
    draft_layers: int = 0  # that follow the model's own in its files, guess further tokens, and are left out

    @classmethod
    def from_huggingface(cls, raw: dict[str, Any]) -> ModelConfig:
        """Read a parsed `config.json`.

        Raises UnsupportedModelError for a feature the exporter lacks, CheckpointError for a broken config.
        """
        family = find_family(raw)
        latent = family.latent(raw)
        query_heads, kv_heads, head_size = _heads(raw, family) if latent is None else latent.heads(raw)
        layers = integer(raw, "num_hidden_layers", most=MAX_LAYERS)
        biased = bool(raw.get("attention_bias", False)) and (family.bias_flags or family.attention_bias_flag)
        return cls(
            family=family.model_type,
            hidden_size=integer(raw, "hidden_size"),
            layers=layers,
            query_heads=query_heads,
            kv_heads=kv_heads,
            head_size=head_size,
            intermediate_size=integer(raw, "intermediate_size"),
            vocab_size=integer(raw, "vocab_size"),
            rms_norm_eps=number(raw, "rms_norm_eps", family.default_eps),
            max_position_embeddings=integer(raw, "max_position_embeddings", 2048, most=sys.maxsize),
            rope=read_rope(raw),
            tied=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=family.qkv_bias or biased,
            o_bias=biased,
            mlp_bias=family.bias_flags and bool(raw.get("mlp_bias", False)),
            qk_norm=family.qk_norm,
            kinds=family.layer_kinds(raw, layers),
            norms=family.norms,
            multipliers=family.multipliers(raw),
            latent=latent,
            draft_layers=integer(raw, "num_nextn_predict_layers", 0, least=0) if latent else 0,
            experts=family.experts(raw, layers),
        )

    def routed(self, layer: int) -> bool:
        """Whether the feed-forward half of a layer is a mixture of experts."""
        return self.experts is not None and layer in self.experts.layers


def _heads(raw: dict[str, Any], family: Family) -> tuple[int, int, int]:
    """Query heads, key/value heads and head size of grouped queries."""
    query_heads = integer(raw, "num_attention_heads")
    kv_heads = integer(raw, "num_key_value_heads", query_heads)
    head_size = integer(
        raw, "head_dim", family.default_head_size or integer(raw, "hidden_size") // query_heads
    )
    if query_heads % kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads ({query_heads}) is no multiple of num_key_value_heads "
            f"({kv_heads}); the file is damaged or not of a decoder with grouped queries"
        )
    if head_size not in HEAD_SIZES:
        known = ", ".join(map(str, HEAD_SIZES))
        raise UnsupportedModelError(f"head size {head_size} is not supported; supported are {known}")
    return query_heads, kv_heads, head_size
