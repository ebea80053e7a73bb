"""Settings of random models some layers of which have a window."""

from __future__ import annotations

from typing import Any

from tests.family_settings import GEMMA4, GPT_OSS, layers
from tests.reference import checkpoints

SLIDING, FULL = "sliding_attention", "full_attention"
FOUR = layers(4, 2, 32)

# Name -> family and its settings.
WINDOWS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {**FOUR, "num_hidden_layers": 2, "sliding_window": 50}),
    "ministral": ("ministral", {**FOUR, "sliding_window": 64, "layer_types": [SLIDING, FULL] * 2}),
    "phi3": ("phi3", {**layers(2, 2), "hidden_size": 128, "sliding_window": 70}),
    "qwen2": (
        "qwen2",
        {
            **layers(3, 1),
            "hidden_size": 128,
            "use_sliding_window": True,
            "sliding_window": 33,
            "max_window_layers": 1,
        },
    ),
    "qwen3": (
        "qwen3",
        {
            **FOUR,
            "use_sliding_window": True,
            "sliding_window": 100,
            "layer_types": [FULL, SLIDING, SLIDING, FULL],
        },
    ),
    "exaone4": ("exaone4", {**FOUR, "sliding_window": 64, "sliding_window_pattern": 4}),
    "gemma2": (
        "gemma2",
        {**FOUR, "query_pre_attn_scalar": 8, "sliding_window": 64, "attn_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "gemma3_text",
        {**layers(7, 2, 32), "query_pre_attn_scalar": 32, "sliding_window": 64, "rope_parameters": None},
    ),
    "gemma4": (
        "gemma4_text",
        {
            **GEMMA4,
            **layers(6, 2, 32),
            "global_head_dim": 64,
            "sliding_window": 64,
            "layer_types": [SLIDING, SLIDING, FULL, FULL, SLIDING, FULL],
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 16,
        },
    ),
    "gpt_oss": ("gpt_oss", {**FOUR, "sliding_window": 64, **GPT_OSS}),
    "olmo3": (
        "olmo3",
        {
            **layers(4, 2),
            "hidden_size": 128,
            "sliding_window": 64,
            "rope_parameters": {
                kind: {**checkpoints.DEFAULT_ROPE, "rope_theta": 5e5} for kind in (SLIDING, FULL)
            },
        },
    ),
    "olmo3-scaled": (
        "olmo3",
        {
            **layers(3, 4),
            "hidden_size": 128,
            "sliding_window": 96,
            "layer_types": [FULL, SLIDING, FULL],
            "rope_parameters": {
                FULL: {
                    "rope_type": "yarn",
                    "rope_theta": 5e5,
                    "factor": 8.0,
                    "original_max_position_embeddings": 512,
                    "attention_factor": 1.2,
                },
                SLIDING: {"rope_type": "default", "rope_theta": 5e5},
            },
        },
    ),
}
