"""OLMo 2 and 3 (Ai2, 2025): norms after attention and MLP, none before them; q and k are normed as a whole.

In version 3, three of four layers have a window, and the others may rotate by scaled angles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.families.family import Family, Norms

OLMO2 = Family(
    "olmo2",
    "Olmo2ForCausalLM",
    norms=Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    attention_bias_flag=True,
    qk_norm="projection",
    defaults={"vocab_size": 50_304, "rms_norm_eps": 1e-5},
)


@dataclass(frozen=True)
class Olmo3Family(Family):
    def unnamed_windows(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        return tuple((layer + 1) % 4 != 0 for layer in range(layers))


OLMO3 = Olmo3Family(
    "olmo3",
    "Olmo3ForCausalLM",
    norms=OLMO2.norms,
    attention_bias_flag=True,
    qk_norm="projection",
    named_windows=True,
    named_rotations=True,
    defaults={**OLMO2.defaults, "rope_theta": 5e5, "sliding_window": 4096},
)
