"""Granite 4 H (IBM, 2025): layers of Mamba-2 and some of attention, with Granite's constant factors.

Every layer has an MLP, which is the shared expert of a mixture where there is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.arrangement import Arrangement
from h2o_export.architecture.experts import ExpertsConfig
from h2o_export.architecture.families.family import FULL, GROUPED_QUERY, MAMBA2, WITHOUT_ROTATION, layer_names
from h2o_export.architecture.families.granite import FACTORS, GraniteFamily
from h2o_export.architecture.kind_sizes import KindSizes
from h2o_export.architecture.mamba2 import IN_PROJ, Mamba2Config
from h2o_export.architecture.values import integer
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

STATE = "linear_attention"  # as layer_types has it
EARLIER = {"mamba": STATE, "attention": FULL}  # what files of before transformers 5 say
KEYS = {
    "heads_of_state": "mamba_n_heads",
    "groups": "mamba_n_groups",
    "state_size": "mamba_d_state",
    "kernel": "mamba_d_conv",
    "conv_bias": "mamba_conv_bias",
    "bias": "mamba_proj_bias",
}
DENSE = Arrangement(
    fused=(IN_PROJ, ("shared_mlp.input_linear", ("mlp.gate_proj", "mlp.up_proj"))),
    renamed=((".shared_mlp.output_linear.", ".mlp.down_proj."),),
)
MIXED = Arrangement(
    fused=(
        IN_PROJ,
        ("shared_mlp.input_linear", ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj")),
    ),
    stacked="halves",
    renamed=(
        (".shared_mlp.output_linear.", ".mlp.shared_experts.down_proj."),
        (".block_sparse_moe.router.weight", ".mlp.gate.weight"),  # in transformers
        (".block_sparse_moe.router.layer.weight", ".mlp.gate.weight"),  # in files
        (".block_sparse_moe.input_linear.weight", ".block_sparse_moe.experts.gate_up_proj"),
        (".block_sparse_moe.output_linear.weight", ".block_sparse_moe.experts.down_proj"),
        (".block_sparse_moe.experts.", ".mlp.experts."),
    ),
)


@dataclass(frozen=True)
class GraniteHybridFamily(GraniteFamily):
    def mlp_size(self, raw: dict[str, Any]) -> int:
        """That of the shared expert; intermediate_size is that of the others."""
        return integer(raw, "shared_intermediate_size")

    def arranged(self, raw: dict[str, Any]) -> Arrangement:
        return MIXED if raw["num_local_experts"] else DENSE

    def layer_kinds(self, raw: dict[str, Any], layers: int) -> tuple[str, ...]:
        types = raw.get("layer_types")
        if isinstance(types, list):
            types = [EARLIER.get(kind, kind) if isinstance(kind, str) else kind for kind in types]
        names = layer_names([STATE] * layers if types is None else types, layers, STATE, FULL)
        if FULL not in names:
            raise UnsupportedModelError("a model without attention in any layer is not supported")
        attention = GROUPED_QUERY if raw.get("position_embedding_type") == "rope" else WITHOUT_ROTATION
        return tuple(attention if name == FULL else MAMBA2 for name in names)

    def kind_sizes(self, raw: dict[str, Any]) -> tuple[KindSizes, ...]:
        if MAMBA2 not in self.layer_kinds(raw, integer(raw, "num_hidden_layers")):
            return ()
        inner, heads = (
            integer(raw, "mamba_expand") * integer(raw, "hidden_size"),
            integer(raw, "mamba_n_heads"),
        )
        size = inner // heads if raw["mamba_d_head"] == "auto" else integer(raw, "mamba_d_head")
        if size * heads != inner:
            raise CheckpointError(
                f"config.json: mamba_n_heads ({heads}) heads of {size} elements are not mamba_expand times "
                f"hidden_size ({inner}); the file is damaged"
            )
        return (Mamba2Config.read(raw, KEYS, size),)

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        count = integer(raw, "num_local_experts", least=0)
        if not count:
            return None
        return ExpertsConfig(
            count=count,
            chosen=integer(raw, "num_experts_per_tok", limit=count),
            size=integer(raw, "intermediate_size"),
            shared_size=integer(raw, "shared_intermediate_size"),
            layers=frozenset(range(layers)),
            router="chosen",
        )


GRANITE_HYBRID = GraniteHybridFamily(
    "granitemoehybrid",
    "GraniteMoeHybridForCausalLM",
    attention_bias_flag=True,
    aliases={"layers_block_type": "layer_types"},
    defaults={
        **FACTORS,
        "shared_intermediate_size": 1024,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_head": "auto",
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "time_step_limit": (0.0, math.inf),
    },
)
