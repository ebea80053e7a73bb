"""OLMo 2 and 3 (Ai2, 2025): norms after attention and MLP, none before them; q and k are normed as a whole.

In version 3, three of four layers have a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.families.base import FULL, SLIDING, Family, Norms
from h2o_runtime.errors import UnsupportedModelError

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

    def completed(self, raw: dict[str, Any]) -> dict[str, Any]:
        """transformers 5 writes a rotation for each kind of layer, which are one here."""
        nested = self._rotations(raw)
        return {**raw, "rope_parameters": nested[0]} if nested else raw

    def check(self, raw: dict[str, Any]) -> None:
        """Scaling applies only to layers without a window."""
        super().check(raw)
        nested, flat = self._rotations(raw), raw.get("rope_scaling") or raw.get("rope_parameters") or {}
        scaled = not nested and isinstance(flat, dict) and flat.get("rope_type", "default") != "default"
        if scaled or (nested and nested[0] != nested[1]):
            raise UnsupportedModelError(
                "layers that rotate by other angles than layers with a window are not supported"
            )

    @staticmethod
    def _rotations(raw: dict[str, Any]) -> tuple[Any, ...]:
        """For layers with a window and for others, if config.json separates them."""
        given = raw.get("rope_parameters")
        if not isinstance(given, dict) or not {SLIDING, FULL} <= given.keys():
            return ()
        return given[SLIDING], given[FULL]


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
