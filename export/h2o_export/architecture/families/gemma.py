"""Gemma 3 (Google, 2025): norms before and after attention and MLP, and five layers with a window to one without.

The layers with a window have their own rotation base.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.arrangement import Arrangement
from h2o_export.architecture.families.base import FULL, SLIDING, Family, Multipliers, Norms
from h2o_export.architecture.rope import RopeConfig, read_rope
from h2o_export.architecture.values import integer, number
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("hidden_activation", (None, "gelu_pytorch_tanh"), "the activation"),
    ("attn_logit_softcapping", (None,), "a cap on the scores of attention"),
    ("use_bidirectional_attention", (None, False), "attention to later tokens"),
)
# Defaults for keys that config.json may omit; checkpoints with a vision tower omit most of them.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
}


@dataclass(frozen=True)
class GemmaFamily(Family):
    def completed(self, raw: dict[str, Any]) -> dict[str, Any]:
        return {**_DEFAULTS, **raw}

    def check(self, raw: dict[str, Any]) -> None:
        super().check(
            {key: value for key, value in raw.items() if key != "hidden_act"}
        )  # the key has another name
        for key, harmless, what in _REFUSED:
            if raw.get(key) not in harmless:
                raise UnsupportedModelError(f"{what} ({key} = {raw[key]!r}) is not supported")

    def unnamed_windows(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        pattern = integer(raw, "sliding_window_pattern", 6)
        return tuple((layer + 1) % pattern != 0 for layer in range(layers))

    def ropes(self, raw: dict[str, Any], rotated: int, layers: int) -> tuple[RopeConfig, ...]:
        """transformers 5 has `rope_parameters` of each kind of layer; earlier ones rope_theta and rope_scaling, and
        rope_local_base_freq of layers with a window, which are not scaled."""
        nested = raw.get("rope_parameters") or {}
        if not isinstance(nested, dict):
            raise CheckpointError(f"config.json: rope_parameters must be an object, but is {nested!r}")
        defaults = {FULL: raw.get("rope_theta", 1e6), SLIDING: raw.get("rope_local_base_freq", 1e4)}
        scaling = {FULL: raw.get("rope_scaling"), SLIDING: None}
        made = {}
        for kind, theta in defaults.items():
            given = nested.get(kind) or scaling[kind] or {}
            if not isinstance(given, dict):
                raise CheckpointError(
                    f"config.json: the rotation of {kind} must be an object, but is {given!r}"
                )
            made[kind] = read_rope({**raw, "rope_parameters": {"rope_theta": theta, **given}}, rotated)
        return tuple(made[SLIDING if window else FULL] for window in self.windowed(raw, layers))

    def multipliers(self, raw: dict[str, Any]) -> Multipliers:
        return Multipliers(
            embedding=math.sqrt(integer(raw, "hidden_size")),
            attention=number(raw, "query_pre_attn_scalar") ** -0.5,
        )

    def logits_cap(self, raw: dict[str, Any]) -> float | None:
        cap = raw.get("final_logit_softcapping")
        return None if cap is None else number(raw, "final_logit_softcapping")


GEMMA3 = GemmaFamily(
    "gemma3_text",
    "Gemma3ForCausalLM",
    norms=Norms(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    attention_bias_flag=True,
    qk_norm="head",
    activation="gelu",
    arrangement=Arrangement(less=1.0),
    default_tied=True,
    default_window=4096,
    named_windows=True,
)
