"""OLMo 2 (Ai2, 2025): norms of what attention and MLP give, none of what they take; q and k normed whole."""

from __future__ import annotations

from h2o_export.architecture.families.base import Family, Norms

OLMO2 = Family(
    "olmo2",
    "Olmo2ForCausalLM",
    norms=Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    attention_bias_flag=True,
    qk_norm="projection",
    has_window=False,
    default_eps=1e-5,
)
