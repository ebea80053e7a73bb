"""LFM2 and LFM2.5 (Liquid AI, 2025 and 2026): short convolutions, and some layers of grouped queries between them.

Further layers of the larger models have mixtures of experts, chosen by sigmoids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from h2o_export.architecture.arrangement import Arrangement
from h2o_export.architecture.experts import ExpertsConfig
from h2o_export.architecture.families.family import (
    FULL,
    GROUPED_QUERY,
    SHORT_CONVOLUTION,
    Family,
    layer_names,
)
from h2o_export.architecture.kind_sizes import KindSizes
from h2o_export.architecture.short_convolution import ConvolutionConfig
from h2o_export.architecture.values import integer, integers, number, refuse
from h2o_runtime.errors import CheckpointError, UnsupportedModelError
from h2o_runtime.limits import MAX_SIZE

CONVOLUTION = "conv"  # as layer_types has it
NAMES = (  # of modules in the files, and here
    (".feed_forward.", ".mlp."),
    (".w1.", ".gate_proj."),
    (".w3.", ".up_proj."),
    (".w2.", ".down_proj."),
    (".mlp.expert_bias", ".mlp.gate.e_score_correction_bias"),
    (".self_attn.out_proj.", ".self_attn.o_proj."),
    (".q_layernorm.", ".q_norm."),
    (".k_layernorm.", ".k_norm."),
    (".operator_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".embedding_norm.", ".norm."),
    (".pos_emb.", ".rotary_emb."),
)


@dataclass(frozen=True)
class ConvolutionFamily(Family):
    """preferred: keys of the first checkpoints, and those that they come before."""

    preferred: Mapping[str, str] = field(default_factory=dict)

    def completed(self, raw: dict[str, Any]) -> dict[str, Any]:
        first = {word: raw[key] for key, word in self.preferred.items() if raw.get(key) is not None}
        return super().completed({**raw, **first, "rms_norm_eps": raw.get("norm_eps")})

    def layer_kinds(self, raw: dict[str, Any], layers: int) -> tuple[str, ...]:
        names = layer_names(self.types(raw, layers), layers, CONVOLUTION, FULL)
        if FULL not in names:
            raise UnsupportedModelError("a model without attention in any layer is not supported")
        return tuple(GROUPED_QUERY if name == FULL else SHORT_CONVOLUTION for name in names)

    def types(self, raw: dict[str, Any], layers: int) -> Any:
        """`layer_types`."""
        return raw.get("layer_types")

    def kind_sizes(self, raw: dict[str, Any]) -> tuple[KindSizes, ...]:
        kinds = self.layer_kinds(raw, integer(raw, "num_hidden_layers"))
        return (ConvolutionConfig.read(raw),) if SHORT_CONVOLUTION in kinds else ()

    def check(self, raw: dict[str, Any]) -> None:
        super().check(raw)
        width = (None, raw["hidden_size"])
        refuse(
            raw,
            (
                ("conv_dim", width, "a convolution of another width"),
                ("conv_dim_out", width, "a convolution of another width"),
                ("block_use_swiglu", (None, True), "an MLP without a gate"),
                ("use_pos_enc", (None, True), "attention without positions"),
            ),
        )


@dataclass(frozen=True)
class DenseConvolutionFamily(ConvolutionFamily):
    def completed(self, raw: dict[str, Any]) -> dict[str, Any]:
        """An MLP's size may be said before two thirds are taken of it."""
        whole = super().completed(raw)
        size = integer(whole, "intermediate_size")
        if whole["block_auto_adjust_ff_dim"]:
            size = _adjusted(whole, int(2 * size / 3))
        return {**whole, "intermediate_size": size}

    def types(self, raw: dict[str, Any], layers: int) -> Any:
        """The first checkpoints have the numbers of the others; where they have none either, all attend."""
        if raw.get("layer_types") is not None:
            return raw["layer_types"]
        attending = range(layers) if raw.get("full_attn_idxs") is None else integers(raw, "full_attn_idxs")
        return [FULL if layer in attending else CONVOLUTION for layer in range(layers)]


def _adjusted(raw: dict[str, Any], size: int) -> int:
    """Rows of an MLP, of two thirds of its `intermediate_size`. Raises CheckpointError."""
    factor = number(raw, "block_ffn_dim_multiplier", most=MAX_SIZE)
    rows, multiple = int(factor * size), integer(raw, "block_multiple_of")
    if not rows:
        field = "block_ffn_dim_multiplier" if size else "intermediate_size"
        raise CheckpointError(f"config.json: {field} ({raw[field]!r}) leaves 0 rows of an MLP")
    return -(-rows // multiple) * multiple


@dataclass(frozen=True)
class MixtureConvolutionFamily(ConvolutionFamily):
    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        first = integer(raw, "num_dense_layers", least=0)
        if first >= layers:
            return None
        count = integer(raw, "num_experts")
        return ExpertsConfig(
            count=count,
            chosen=integer(raw, "num_experts_per_tok", limit=count),
            size=integer(raw, "moe_intermediate_size"),
            layers=frozenset(range(first, layers)),
            router="sigmoid",
            normalized=bool(raw["norm_topk_prob"]),
            factor=number(raw, "routed_scaling_factor"),
            added=1e-6,
        )

    def check(self, raw: dict[str, Any]) -> None:
        super().check(raw)
        if not raw["use_expert_bias"]:
            raise UnsupportedModelError(
                "choosing experts without a bias (use_expert_bias = False) is not supported"
            )


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 65_536,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128_000,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "conv_bias": False,
    "conv_L_cache": 3,
}
LFM2 = DenseConvolutionFamily(
    "lfm2",
    "Lfm2ForCausalLM",
    qk_norm="head",
    arrangement=Arrangement(renamed=NAMES),
    preferred={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
    defaults={
        **_DEFAULTS,
        "hidden_size": 2560,
        "intermediate_size": 12_288,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
    },
)
LFM2_MOE = MixtureConvolutionFamily(
    "lfm2_moe",
    "Lfm2MoeForCausalLM",
    qk_norm="head",
    arrangement=Arrangement(renamed=NAMES),
    preferred={"tie_embedding": "tie_word_embeddings"},
    defaults={
        **_DEFAULTS,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "use_expert_bias": True,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    },
)
