"""LFM2 in GGUF, architectures `lfm2` and `lfm2moe`. Facts are those of llama.cpp's converter.

A layer whose heads of keys are 0 is a short convolution. The size of MLPs is the final one. Of a mixture's settings
the file has the sizes and the function of scores; llama.cpp always divides weights of chosen experts by their sum.
"""

from __future__ import annotations

from typing import Any

from gguf import ExpertGatingFuncType

from h2o_export.architecture.families.family import FULL
from h2o_export.architecture.families.lfm import CONVOLUTION
from h2o_export.checkpoints.gguf.header import Metadata
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

REQUIRED = (("shortconv.l_cache", "conv_L_cache"),)


def convolution_config(value: Metadata) -> dict[str, Any]:
    """The `config.json` keys of such layers, besides those of `REQUIRED`. Raises CheckpointError and
    UnsupportedModelError.
    """
    key, layers = f"{value.name}.attention.head_count_kv", value.number("block_count")
    heads = value.header.metadata.get(key)
    if not isinstance(heads, list) or len(heads) != layers or not any(heads):
        raise CheckpointError(
            f"{value.header.path}: {key} must be the heads of keys of each of {layers} layers, and 0 in short "
            "convolutions alone; download it again"
        )
    if len({*heads} - {0}) > 1:
        raise UnsupportedModelError(
            f"{value.header.path}: layers with different numbers of heads of keys ({key} = {heads}) are not "
            "supported"
        )
    return {
        "num_key_value_heads": max(heads),
        "layer_types": [FULL if count else CONVOLUTION for count in heads],
        "norm_eps": value("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
    }


def mixture_config(value: Metadata) -> dict[str, Any]:
    """The same, with mixtures. Raises UnsupportedModelError for scores that are no sigmoids."""
    gating = value("expert_gating_func")
    if gating not in (None, ExpertGatingFuncType.SIGMOID):
        raise UnsupportedModelError(
            f"{value.header.path}: scores of experts that are no sigmoids ({value.name}.expert_gating_func = "
            f"{gating!r}) are not supported"
        )
    return {
        **convolution_config(value),
        "num_dense_layers": value.number("leading_dense_block_count"),
        "routed_scaling_factor": value("expert_weights_scale") or 1.0,
    }
