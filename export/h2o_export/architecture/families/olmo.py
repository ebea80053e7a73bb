"""OLMo 2 and 3 (Ai2, 2025): norms after attention and MLP, none before them; q and k are normed as a whole.

In version 3, three of four layers have a window, and the others may rotate by scaled angles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.families.base import FULL, SLIDING, Family, Norms
from h2o_export.architecture.rope import RopeConfig, read_ropes

OLMO2 = Family(
    "olmo2",
    "Olmo2ForCausalLM",
    norms=Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    attention_bias_flag=True,
    qk_norm="projection",
    has_window=False,
    default_eps=1e-5,
)


@dataclass(frozen=True)
class Olmo3Family(Family):
    def unnamed_windows(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        return tuple((layer + 1) % 4 != 0 for layer in range(layers))

    def ropes(self, raw: dict[str, Any], rotated: int, layers: int) -> tuple[RopeConfig, ...]:
        """Scaling applies only to layers without a window."""
        given = raw.get("rope_parameters") or {}
        base = given.get("rope_theta") if isinstance(given, dict) else None
        bases = dict.fromkeys((FULL, SLIDING), base or raw.get("rope_theta", 5e5))
        kinds = [SLIDING if window else FULL for window in self.windowed(raw, layers)]
        return read_ropes(raw, rotated, kinds, bases, scaled=FULL)


OLMO3 = Olmo3Family(
    "olmo3",
    "Olmo3ForCausalLM",
    norms=OLMO2.norms,
    attention_bias_flag=True,
    qk_norm="projection",
    default_window=4096,
    named_windows=True,
    default_eps=1e-5,
)
