"""Phi-3 and Phi-4-mini (Microsoft, 2024 and 2025): Llama's layer, its projections stored together."""

from __future__ import annotations

from h2o_export.architecture.arrangement import GATE_UP, QKV, Arrangement
from h2o_export.architecture.families.base import Family

PHI3 = Family(
    "phi3",
    "Phi3ForCausalLM",
    arrangement=Arrangement(fused=(QKV, GATE_UP)),
    default_rotated=1.0,
    default_eps=1e-5,
)
