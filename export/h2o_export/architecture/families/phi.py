"""Phi-3 and Phi-4-mini (Microsoft, 2024 and 2025): Llama's layer, its projections stored together."""

from __future__ import annotations

from h2o_export.architecture.arrangement import GATE_UP, QKV, Arrangement
from h2o_export.architecture.families.family import Family
from h2o_export.architecture.rope import ORIGINAL, SHARE

PHI3 = Family(
    "phi3",
    "Phi3ForCausalLM",
    arrangement=Arrangement(fused=(QKV, GATE_UP)),
    defaults={
        "vocab_size": 32_064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        ORIGINAL: 4096,
        SHARE: 1.0,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
    },
)
