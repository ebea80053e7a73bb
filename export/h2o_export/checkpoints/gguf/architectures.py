"""llama.cpp's names for the families and for their metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gguf import MODEL_ARCH

from h2o_export.architecture.families.family import FULL, SLIDING
from h2o_export.checkpoints.gguf import convolutions, mamba, states
from h2o_export.checkpoints.gguf.gemma4 import gemma4_config
from h2o_export.checkpoints.gguf.header import Metadata
from h2o_export.checkpoints.gguf.rope import LOG_MULTIPLIER, proportional
from h2o_runtime.limits import MAX_LAYERS

WINDOW = "attention.sliding_window"
ATTENTION_FACTOR = "rope.scaling.attn_factor"
TEMPERATURE = "attention.temperature_scale"


def nothing(value: Metadata) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Architecture:
    """One value of `general.architecture`.

    model_type  that of config.json
    kind        by which the package gguf knows its tensors
    neighbours  whether rows of q and k are stored so that RoPE turns neighbours; transformers turns halves
    required    (key after the architecture's name, word of config.json), besides those of all architectures
    own         further words of config.json
    allowed     keys after its name that change a layer's arithmetic, and are read
    rope        further words of rope_parameters
    optional    keys that its files may lack, of those that the files of all architectures have
    window_base base of the rotation in layers with a window, where the file does not say; None: as in all others
    stopped_pairs whether the tensor of RoPE's factors only says which pairs turn, in layers without a window
    """

    model_type: str
    kind: MODEL_ARCH
    neighbours: bool = False
    required: tuple[tuple[str, str], ...] = ()
    own: Callable[[Metadata], dict[str, Any]] = nothing
    allowed: tuple[str, ...] = ()
    rope: Callable[[Metadata], dict[str, Any]] = nothing
    optional: tuple[str, ...] = ()
    window_base: float | None = None
    stopped_pairs: bool = False


def _granite(value: Metadata) -> dict[str, Any]:
    words = {
        "embedding_multiplier": value("embedding_scale"),
        "residual_multiplier": value("residual_scale"),
        "logits_scaling": value("logit_scale"),
    }
    # llama.cpp reads a missing key as 0, and a layer without a constant as Llama's.
    said = {word: multiplier for word, multiplier in words.items() if multiplier}
    return said | {"attention_multiplier": value("attention.scale") or None}


def _granite_hybrid(value: Metadata) -> dict[str, Any]:
    return _granite(value) | mamba.granite_config(value)


def _exaone4(value: Metadata) -> dict[str, Any]:
    """Without a window all layers are alike."""
    if value(WINDOW):
        return _windows(value)
    layers = value("block_count")
    return {"layer_types": [FULL] * min(layers, MAX_LAYERS)} if isinstance(layers, int) else {}


def _olmo2(value: Metadata) -> dict[str, Any]:
    """With a window it is the third version, in llama.cpp too."""
    return {"model_type": "olmo3", **_windows(value)} if value(WINDOW) else {}


def _olmo2_rope(value: Metadata) -> dict[str, Any]:
    """The file has the attention_factor of config.json."""
    factor = value(ATTENTION_FACTOR)
    return {"attention_factor": factor} if factor else {}


def _windows(value: Metadata) -> dict[str, Any]:
    """Which layers have the window, if the file says so; otherwise llama.cpp uses the same default as we
    do.
    """
    pattern = value(f"{WINDOW}_pattern")
    if not isinstance(pattern, list):
        return {}
    return {"layer_types": [SLIDING if one else FULL for one in pattern]}


def _qwen3_moe(value: Metadata) -> dict[str, Any]:
    return {"norm_topk_prob": True}  # always, in llama.cpp


def _qwen_delta_moe(value: Metadata) -> dict[str, Any]:
    return {
        **states.delta_config(value),
        **_qwen3_moe(value),
        "shared_expert_intermediate_size": value("expert_shared_feed_forward_length"),
        "intermediate_size": value("feed_forward_length") or value("expert_feed_forward_length"),
    }


def _gemma_scale(value: Metadata, largest: int) -> Any:
    """llama.cpp knows that the largest model, of so many layers, has its own scale of scores."""
    heads, hidden = value("attention.head_count"), value("embedding_length")
    known = isinstance(heads, int) and isinstance(hidden, int) and heads > 0
    return hidden // heads if known and value("block_count") == largest else value("attention.key_length")


def _gemma2(value: Metadata) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": _gemma_scale(value, largest=46),
        "final_logit_softcapping": value("final_logit_softcapping") or 30.0,
        "attn_logit_softcapping": value("attn_logit_softcapping") or 50.0,
    } | _windows(value)


def _gemma3(value: Metadata) -> dict[str, Any]:
    said = {
        "query_pre_attn_scalar": _gemma_scale(value, largest=62),
        "final_logit_softcapping": value("final_logit_softcapping") or None,
    }
    window, pattern = value(WINDOW), value(f"{WINDOW}_pattern")
    if isinstance(pattern, list):
        return said | {"layer_types": [SLIDING if one and window else FULL for one in pattern]}
    return said | {"sliding_window_pattern": (pattern or 6) if window else 1}


def _gpt_oss_rope(value: Metadata) -> dict[str, Any]:
    return {"truncate": False}  # a file does not say it


def _mistral3_rope(value: Metadata) -> dict[str, Any]:
    """Queries grow only where cosines do not: of YaRN's two factors the file has the one of scores."""
    growth = value(TEMPERATURE)
    said = {"mscale": 1.0, "mscale_all_dim": value(f"rope.scaling.{LOG_MULTIPLIER}") or None}
    return {**said, **({"llama_4_scaling_beta": growth} if growth else {})}


_GRANITE_FACTORS = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")


_QWEN3_MOE = (
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
)


_GPT_OSS = (
    ("expert_count", "num_local_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "intermediate_size"),
)


def _qwen_delta_moe_of(model_type: str, kind: MODEL_ARCH) -> Architecture:
    return Architecture(
        model_type,
        kind,
        required=(*states.REQUIRED, *_QWEN3_MOE),
        own=_qwen_delta_moe,
        allowed=("expert_count",),
        optional=("feed_forward_length",),
    )


# Mistral models are "llama" too, because they compute the same. `latent` reads DeepSeek's.
ARCHITECTURES = {
    "llama": Architecture("llama", MODEL_ARCH.LLAMA, neighbours=True),
    "qwen2": Architecture("qwen2", MODEL_ARCH.QWEN2),
    "qwen3": Architecture("qwen3", MODEL_ARCH.QWEN3),
    "qwen3moe": Architecture(
        "qwen3_moe", MODEL_ARCH.QWEN3MOE, required=_QWEN3_MOE, own=_qwen3_moe, allowed=("expert_count",)
    ),
    "mistral3": Architecture(
        "ministral3",
        MODEL_ARCH.MISTRAL3,
        neighbours=True,
        allowed=(TEMPERATURE, f"rope.scaling.{LOG_MULTIPLIER}"),
        rope=_mistral3_rope,
    ),
    "smollm3": Architecture("smollm3", MODEL_ARCH.SMOLLM3, neighbours=True),
    "granite": Architecture(
        "granite",
        MODEL_ARCH.GRANITE,
        neighbours=True,
        own=_granite,
        allowed=_GRANITE_FACTORS,
    ),
    "granitehybrid": Architecture(
        "granitemoehybrid",
        MODEL_ARCH.GRANITE_HYBRID,
        neighbours=True,
        required=mamba.GRANITE_REQUIRED,
        own=_granite_hybrid,
        allowed=(*_GRANITE_FACTORS, "expert_count"),
    ),
    "nemotron_h": Architecture(
        "nemotron_h",
        MODEL_ARCH.NEMOTRON_H,
        neighbours=True,
        required=mamba.NEMOTRON_REQUIRED,
        own=mamba.nemotron_config,
    ),
    "nemotron_h_moe": Architecture(
        "nemotron_h",
        MODEL_ARCH.NEMOTRON_H_MOE,
        neighbours=True,
        required=(*mamba.NEMOTRON_REQUIRED, *mamba.MIXTURE_REQUIRED),
        own=mamba.nemotron_mixture_config,
        allowed=("expert_count",),
    ),
    "olmo2": Architecture(
        "olmo2", MODEL_ARCH.OLMO2, own=_olmo2, allowed=(WINDOW, ATTENTION_FACTOR), rope=_olmo2_rope
    ),
    "phi3": Architecture("phi3", MODEL_ARCH.PHI3, allowed=(WINDOW,)),
    "glm4": Architecture("glm4", MODEL_ARCH.GLM4),
    "ernie4_5": Architecture("ernie4_5", MODEL_ARCH.ERNIE4_5),
    "hunyuan-dense": Architecture("hunyuan_v1_dense", MODEL_ARCH.HUNYUAN_DENSE),
    "exaone4": Architecture("exaone4", MODEL_ARCH.EXAONE4, own=_exaone4, allowed=(WINDOW,)),
    "gemma2": Architecture(
        "gemma2",
        MODEL_ARCH.GEMMA2,
        own=_gemma2,
        allowed=(WINDOW, "attn_logit_softcapping", "final_logit_softcapping"),
    ),
    "gemma3": Architecture(
        "gemma3_text",
        MODEL_ARCH.GEMMA3,
        own=_gemma3,
        allowed=(WINDOW, "final_logit_softcapping"),
        window_base=10_000.0,
    ),
    "gemma4": Architecture(
        "gemma4_text",
        MODEL_ARCH.GEMMA4,
        own=gemma4_config,
        allowed=(WINDOW, "final_logit_softcapping", "expert_count"),
        rope=proportional,
        window_base=10_000.0,
        stopped_pairs=True,
    ),
    "qwen35": Architecture(
        "qwen3_5_text", MODEL_ARCH.QWEN35, required=states.REQUIRED, own=states.delta_config
    ),
    "qwen35moe": _qwen_delta_moe_of("qwen3_5_moe_text", MODEL_ARCH.QWEN35MOE),
    "qwen3next": _qwen_delta_moe_of("qwen3_next", MODEL_ARCH.QWEN3NEXT),
    "lfm2": Architecture(
        "lfm2", MODEL_ARCH.LFM2, required=convolutions.REQUIRED, own=convolutions.convolution_config
    ),
    "lfm2moe": Architecture(
        "lfm2_moe",
        MODEL_ARCH.LFM2MOE,
        required=(*convolutions.REQUIRED, *_QWEN3_MOE),
        own=convolutions.mixture_config,
        allowed=("expert_count",),
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        MODEL_ARCH.GPT_OSS,
        required=_GPT_OSS,
        own=_windows,
        allowed=("expert_count", WINDOW),
        rope=_gpt_oss_rope,
    ),
    "deepseek2": Architecture(
        "deepseek_v2", MODEL_ARCH.DEEPSEEK2, allowed=("expert_count", f"rope.scaling.{LOG_MULTIPLIER}")
    ),
}
