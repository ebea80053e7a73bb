"""Nemotron-H and Nemotron 3 Nano (NVIDIA, 2025): layers of Mamba-2, and some of attention without positions.

In the files a layer is one block: a mixer, or what follows most mixers, an MLP or a mixture of experts. Here a
layer is a mixer and the block behind it, if that is no mixer. MLPs and experts have no gate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from h2o_export.architecture.arrangement import Arrangement
from h2o_export.architecture.experts import ExpertsConfig
from h2o_export.architecture.families.family import FULL, MAMBA2, WITHOUT_ROTATION, Biases, Family
from h2o_export.architecture.kind_sizes import KindSizes
from h2o_export.architecture.mamba2 import IN_PROJ, Mamba2Config
from h2o_export.architecture.rope import SHARE
from h2o_export.architecture.values import integer, number, refuse
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

PATTERN = "hybrid_override_pattern"  # a letter a block, in files of before transformers 5
TYPES = "layers_block_type"
STATE, DENSE, MIXED = "linear_attention", "mlp", "moe"  # kinds of blocks, beside FULL
LETTERS = {"M": STATE, "*": FULL, "-": DENSE, "E": MIXED}
EARLIER = {"mamba": STATE, "attention": FULL}
MIXERS = {STATE: (MAMBA2, "mamba"), FULL: (WITHOUT_ROTATION, "self_attn")}  # layer kinds, and modules here
KEYS = {
    "heads_of_state": "mamba_num_heads",
    "groups": "n_groups",
    "state_size": "ssm_state_size",
    "kernel": "conv_kernel",
    "conv_bias": "use_conv_bias",
    "bias": "use_bias",
}
IGNORED = ("rope_theta", "rope_scaling", "rope_parameters", SHARE, "rms_norm_eps")  # by transformers too
Blocks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class NemotronFamily(Family):
    def completed(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Without a rotation, which no layer has."""
        whole = super().completed({key: value for key, value in raw.items() if key not in IGNORED})
        return {**whole, "num_hidden_layers": len(self.blocks(whole))}

    def blocks(self, raw: dict[str, Any]) -> Blocks:
        """A mixer, and the block behind it, for every layer."""
        layers: list[tuple[int, ...]] = []
        for block, kind in enumerate(_types(raw)):
            if kind in MIXERS:
                layers.append((block,))
            elif layers and layers[-1] == (block - 1,):
                layers[-1] = (block - 1, block)
            else:
                raise UnsupportedModelError(
                    f"an MLP that does not follow Mamba-2 or attention (block {block}) is not supported"
                )
        return tuple(layers)

    def arranged(self, raw: dict[str, Any]) -> Arrangement:
        return replace(self.arrangement, renamed=tuple(_names(_types(raw), self.blocks(raw))))

    def layer_kinds(self, raw: dict[str, Any], layers: int) -> tuple[str, ...]:
        mixers = [kind for kind in _types(raw) if kind in MIXERS]
        for needed, what in ((FULL, "attention"), (STATE, "Mamba-2")):
            if needed not in mixers:
                raise UnsupportedModelError(f"a model without {what} in any layer is not supported")
        return tuple(MIXERS[kind][0] for kind in mixers)

    def kind_sizes(self, raw: dict[str, Any]) -> tuple[KindSizes, ...]:
        return (Mamba2Config.read(raw, KEYS, integer(raw, "mamba_head_dim")),)

    def biases(self, raw: dict[str, Any]) -> Biases:
        """transformers has none in attention, whatever config.json says."""
        return Biases(mlp=bool(raw["mlp_bias"]))

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        types = _types(raw)
        mixed = frozenset(layer for layer, parts in enumerate(self.blocks(raw)) if types[parts[-1]] == MIXED)
        if not mixed:
            return None
        return ExpertsConfig(
            count=integer(raw, "n_routed_experts"),
            chosen=integer(raw, "num_experts_per_tok"),
            size=integer(raw, "moe_intermediate_size"),
            shared_size=integer(raw, "moe_shared_expert_intermediate_size"),
            layers=mixed,
            router="sigmoid",
            groups=integer(raw, "n_group"),
            chosen_groups=integer(raw, "topk_group"),
            normalized=bool(raw["norm_topk_prob"]),
            factor=number(raw, "routed_scaling_factor"),
        )

    def check(self, raw: dict[str, Any]) -> None:
        super().check(raw)
        refuse(
            raw,
            (
                ("mlp_hidden_act", ("relu2",), "the activation"),
                ("mamba_hidden_act", ("silu",), "the activation"),
                ("moe_latent_size", (None,), "experts that read a projection"),
                ("tie_word_embeddings", (False,), "a head that is the embedding"),
            ),
        )
        if raw["mlp_bias"] and MIXED in _types(raw):
            raise UnsupportedModelError("mlp_bias = True beside mixtures of experts is not supported")


def _types(raw: dict[str, Any]) -> list[str]:
    """The kind of every block. Raises CheckpointError."""
    types, pattern = raw.get(TYPES), raw.get(PATTERN)
    if types is None and pattern is not None:
        types = [LETTERS.get(letter) for letter in pattern] if isinstance(pattern, str) else pattern
    elif types is None:
        types = [STATE, MIXED, FULL, DENSE]
    if isinstance(types, list):
        types = [EARLIER.get(kind, kind) if isinstance(kind, str) else None for kind in types]
        if types and all(kind in LETTERS.values() for kind in types):
            return types
    said = f"{PATTERN} is {pattern!r}" if raw.get(TYPES) is None else f"{TYPES} is {raw[TYPES]!r}"
    raise CheckpointError(
        f"config.json: every block must be one of {', '.join(LETTERS.values())}, or a letter of "
        f"{''.join(LETTERS)}, but {said}"
    )


def _names(types: list[str], blocks: Blocks) -> Iterator[tuple[str, str]]:
    """Parts of tensors' names in the files and here: see `Arrangement.renamed`."""
    yield "backbone.", "model."
    yield "model.embeddings.", "model.embed_tokens."
    yield "model.norm_f.", "model.norm."
    for layer, parts in enumerate(blocks):
        mixer = f"model.layers.{layer}.{MIXERS[types[parts[0]]][1]}."
        places = ((mixer, "input_layernorm"), (f"model.layers.{layer}.mlp.", "post_attention_layernorm"))
        for block, (module, norm) in zip(parts, places, strict=False):
            yield f"model.layers.{block}.mixer.", module
            yield f"model.layers.{block}.norm.", f"model.layers.{layer}.{norm}."


NEMOTRON_H = NemotronFamily(
    "nemotron_h",
    "NemotronHForCausalLM",
    activation="relu2",
    arrangement=Arrangement(fused=(IN_PROJ,)),
    aliases={
        "layer_norm_epsilon": "rms_norm_eps",
        "layer_types": TYPES,
        "mamba_n_groups": "n_groups",
        "mamba_d_conv": "conv_kernel",
        "mamba_conv_bias": "use_conv_bias",
        "mamba_dt_limit": "time_step_limit",
    },
    defaults={
        "vocab_size": 131_072,
        "intermediate_size": 21_504,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "use_bias": False,
        "time_step_limit": (0.0, math.inf),
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
    },
)
