"""Gemma 4 (Google, 2026): layers without a window have larger heads than the others, and their values may be their
keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.arrangement import Arrangement
from h2o_export.architecture.experts import ExpertsConfig
from h2o_export.architecture.families.family import FULL, SLIDING, Multipliers
from h2o_export.architecture.families.gemma import NORMS, GemmaFamily
from h2o_export.architecture.layer_sizes import LayerEmbedding, LayerSizes
from h2o_export.architecture.rope import SHARE
from h2o_export.architecture.values import integer
from h2o_runtime.errors import CheckpointError

_OWN = "per_layer_config"  # of transformers 5.24; earlier versions have the next two
_HEAD_SIZE, _KV_HEADS = "global_head_dim", "num_global_key_value_heads"


@dataclass(frozen=True)
class Gemma4Family(GemmaFamily):
    """Text models; every image and sound of a prompt would see later tokens, and text does not."""

    def check(self, raw: dict[str, Any]) -> None:
        seen = "use_bidirectional_attention"
        super().check({key: value for key, value in raw.items() if (key, value) != (seen, "vision")})

    def windowed(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        """As in transformers, the last layer has none, whatever config.json says."""
        return (*super().windowed(raw, layers)[:-1], False)

    def multipliers(self, raw: dict[str, Any]) -> Multipliers:
        return Multipliers(embedding=math.sqrt(integer(raw, "hidden_size")), attention=1.0)

    def layer_embedding(self, raw: dict[str, Any]) -> LayerEmbedding | None:
        size = integer(raw, "hidden_size_per_layer_input", least=0)
        vocabulary = integer(raw, "vocab_size_per_layer_input")
        if not size:
            return None
        if vocabulary < integer(raw, "vocab_size"):
            raise CheckpointError(
                f"config.json: vocab_size_per_layer_input ({vocabulary:,}) is less than vocab_size "
                f"({raw['vocab_size']:,}): layers have no embedding of the last tokens; the file is damaged"
            )
        return LayerEmbedding(size, vocabulary)

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        if not raw.get("enable_moe_block"):
            return None
        return ExpertsConfig(
            count=integer(raw, "num_experts"),
            chosen=integer(raw, "top_k_experts"),
            size=integer(raw, "moe_intermediate_size"),
            layers=frozenset(range(layers)),
            router="softmax",
            normalized=True,
            beside_mlp=True,
        )

    def layer_sizes(self, raw: dict[str, Any], layers: int) -> tuple[LayerSizes, ...]:
        windowed = self.windowed(raw, layers)
        sources = _sources(windowed, integer(raw, "num_kv_shared_layers", least=0))
        wider = 2 if raw.get("use_double_wide_mlp") else 1  # in layers without keys
        sizes = []
        for layer, (window, source) in enumerate(zip(windowed, sources, strict=True)):
            kv_heads, head_size = _heads(raw, layer, window)
            sizes.append(
                LayerSizes(
                    head_size=head_size,
                    kv_heads=kv_heads,
                    rotated_size=head_size,
                    intermediate_size=integer(raw, "intermediate_size") * (1 if source is None else wider),
                    keys_as_values=bool(raw.get("attention_k_eq_v")) and not window,
                    source=source,
                    lends=layer in sources,
                )
            )
        return tuple(sizes)


def _sources(windowed: Sequence[bool], shared: int) -> tuple[int | None, ...]:
    """For each layer the one whose rows it reads: of the last `shared` ones, the last layer before them that
    has a window, or none, as they do. None: its own.
    """
    source = len(windowed) - shared
    last = {window: layer for layer, window in enumerate(windowed[: max(source, 0)])}
    if source < 1 or not {*windowed[source:]} <= last.keys():
        raise CheckpointError(
            f"config.json: num_kv_shared_layers ({shared}) leaves no layer whose keys the last layers could read; "
            "the file is damaged"
        )
    return (*[None] * source, *(last[window] for window in windowed[source:]))


def _heads(raw: dict[str, Any], layer: int, window: bool) -> tuple[int, int]:
    """Key/value heads of a layer, and elements of a head."""
    sizes = raw | _sizes(raw, layer, window)
    kv_heads, query_heads = integer(sizes, "num_key_value_heads"), integer(raw, "num_attention_heads")
    if query_heads % kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads ({query_heads}) is no multiple of the {kv_heads} key/value heads of "
            f"layer {layer}; the file is damaged"
        )
    return kv_heads, integer(sizes, "head_dim")


def _sizes(raw: dict[str, Any], layer: int, window: bool) -> dict[str, Any]:
    """What replaces head_dim and num_key_value_heads in a layer."""
    if _OWN not in raw:
        if window:
            return {}
        heads = {"num_key_value_heads": raw.get(_KV_HEADS)} if raw.get("attention_k_eq_v") else {}
        given = {"head_dim": raw[_HEAD_SIZE], **heads}
        return {key: value for key, value in given.items() if value is not None}
    layers = raw[_OWN]
    if not isinstance(layers, dict) or not all(isinstance(settings, dict) for settings in layers.values()):
        raise CheckpointError(f"config.json: {_OWN} must have an object for each layer, but is {layers!r}")
    by_number: dict[str, dict[str, Any]] = {
        number.lstrip("0") or "0": settings for number, settings in layers.items()
    }  # "05" where there are 30
    return by_number.get(str(layer), {})


GEMMA4 = Gemma4Family(
    "gemma4_text",
    "Gemma4ForCausalLM",
    norms=NORMS,
    attention_bias_flag=True,
    qk_norm="head",
    value_norm=True,
    layer_scalar=True,
    activation="gelu",
    arrangement=Arrangement(stacked="halves"),
    named_windows=True,
    named_rotations=True,
    whole=6,
    defaults={
        "vocab_size": 262_144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        _HEAD_SIZE: 512,
        "max_position_embeddings": 131_072,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
            FULL: {"rope_type": "proportional", SHARE: 0.25, "rope_theta": 1e6},
        },
        "tie_word_embeddings": True,
        "sliding_window": 512,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
    },
)
