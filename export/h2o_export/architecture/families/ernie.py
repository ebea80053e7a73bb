"""ERNIE 4.5 without mixtures (Baidu, 2025): Llama's layer, in which RoPE turns neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.arrangement import Arrangement
from h2o_export.architecture.families.base import Biases, Family


@dataclass(frozen=True)
class ErnieFamily(Family):
    def biases(self, raw: dict[str, Any]) -> Biases:
        return Biases(*(bool(raw["use_bias"]),) * 3)


ERNIE4_5 = ErnieFamily(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    arrangement=Arrangement(neighbours=True),
    defaults={
        "vocab_size": 103_424,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 18,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
        "use_bias": False,
    },
)
