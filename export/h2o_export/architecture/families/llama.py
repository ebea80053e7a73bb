"""Llama (Meta, 2023) and models with its layer: SmolLM, SmolLM2, TinyLlama; Mistral, which may have
windows.
"""

from __future__ import annotations

from h2o_export.architecture.families.family import Family

LLAMA = Family("llama", "LlamaForCausalLM", bias_flags=True)
MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    defaults={
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
)
