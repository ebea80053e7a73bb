"""Llama (Meta, 2023) and models with its layer: SmolLM, SmolLM2, TinyLlama; Mistral, which may have
windows.
"""

from __future__ import annotations

from h2o_export.architecture.families.base import Family

LLAMA = Family("llama", "LlamaForCausalLM", bias_flags=True, has_window=False)
MISTRAL = Family("mistral", "MistralForCausalLM", default_window=4096)
