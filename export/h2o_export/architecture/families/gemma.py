"""Gemma 2 and 3 (Google, 2024 and 2025): norms before and after attention and MLP, and windows in most layers.

In version 2 every other layer has a window, and a tanh caps scores and logits. In version 3 five of six layers have
one, and rotate by a base of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.arrangement import Arrangement
from h2o_export.architecture.families.family import FULL, SLIDING, Family, Multipliers, Norms
from h2o_export.architecture.values import integer, number, refuse

_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("hidden_activation", (None, "gelu_pytorch_tanh"), "the activation"),
    ("use_bidirectional_attention", (None, False), "attention to later tokens"),
)
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}


@dataclass(frozen=True)
class GemmaFamily(Family):
    """`whole`: of how many layers the last one has no window, where config.json does not name them."""

    whole: int = 2

    def check(self, raw: dict[str, Any]) -> None:
        super().check(
            {key: value for key, value in raw.items() if key != "hidden_act"}
        )  # the key has another name
        refuse(raw, _REFUSED)

    def unnamed_windows(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        return tuple((layer + 1) % self.whole != 0 for layer in range(layers))

    def multipliers(self, raw: dict[str, Any]) -> Multipliers:
        return Multipliers(
            embedding=math.sqrt(integer(raw, "hidden_size")),
            attention=number(raw, "query_pre_attn_scalar") ** -0.5,
        )

    def logits_cap(self, raw: dict[str, Any]) -> float | None:
        return _cap(raw, "final_logit_softcapping")


def _cap(raw: dict[str, Any], key: str) -> float | None:
    return None if raw.get(key) is None else number(raw, key)


@dataclass(frozen=True)
class Gemma2Family(GemmaFamily):
    def scores_cap(self, raw: dict[str, Any]) -> float | None:
        return _cap(raw, "attn_logit_softcapping")


@dataclass(frozen=True)
class Gemma3Family(GemmaFamily):
    def unnamed_windows(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        pattern = integer(raw, "sliding_window_pattern")
        return tuple((layer + 1) % pattern != 0 for layer in range(layers))

    def bases(self, raw: dict[str, Any]) -> Mapping[str, Any]:
        return {FULL: raw["rope_theta"], SLIDING: raw["rope_local_base_freq"]}


NORMS = Norms(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
GEMMA2 = Gemma2Family(
    "gemma2",
    "Gemma2ForCausalLM",
    norms=NORMS,
    attention_bias_flag=True,
    activation="gelu",
    arrangement=Arrangement(less=1.0),
    named_windows=True,
    defaults=_DEFAULTS,
)
GEMMA3 = Gemma3Family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    norms=NORMS,
    attention_bias_flag=True,
    qk_norm="head",
    activation="gelu",
    arrangement=Arrangement(less=1.0),
    named_windows=True,
    named_rotations=True,
    defaults={
        **_DEFAULTS,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window_pattern": 6,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
)
