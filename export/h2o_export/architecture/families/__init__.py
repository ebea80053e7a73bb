"""Checkpoint families, by `model_type`. A new family is a file in this folder and its name here."""

from __future__ import annotations

import re
from typing import Any

from h2o_export.architecture.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE, KIMI_K2, YOUTU
from h2o_export.architecture.families.ernie import ERNIE4_5, ERNIE4_5_MOE
from h2o_export.architecture.families.exaone import EXAONE4
from h2o_export.architecture.families.family import Family
from h2o_export.architecture.families.gemma import GEMMA2, GEMMA3
from h2o_export.architecture.families.gemma4 import GEMMA4
from h2o_export.architecture.families.glm import GLM4
from h2o_export.architecture.families.gpt_oss import GPT_OSS
from h2o_export.architecture.families.granite import GRANITE
from h2o_export.architecture.families.granite_hybrid import GRANITE_HYBRID
from h2o_export.architecture.families.hunyuan import HUNYUAN_DENSE
from h2o_export.architecture.families.lfm import LFM2, LFM2_MOE
from h2o_export.architecture.families.llama import LLAMA, MISTRAL
from h2o_export.architecture.families.ministral import MINISTRAL, MINISTRAL3
from h2o_export.architecture.families.nemotron_h import NEMOTRON_H
from h2o_export.architecture.families.olmo import OLMO2, OLMO3
from h2o_export.architecture.families.phi import PHI3
from h2o_export.architecture.families.qwen import QWEN2, QWEN3, QWEN3_MOE
from h2o_export.architecture.families.qwen_delta import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from h2o_export.architecture.families.smollm import SMOLLM3
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

__all__ = ["FAMILIES", "Family", "find_family"]

# What layers of these have that no layer kind here has.
MISSING = {
    "llama4": "most of its layers attend within chunks of a text, and such a window is missing",
    **dict.fromkeys(
        ("falcon_h1", "mamba2", "bamba"),
        "its layers of Mamba-2 are arranged in another way",
    ),
    "gemma3n": "its layers have several residual streams, which are missing",
}
OTHER_THAN_TEXT = re.compile("vision|audio|siglip|clip")
FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        LLAMA,
        MISTRAL,
        MINISTRAL,
        MINISTRAL3,
        QWEN2,
        QWEN3,
        QWEN3_MOE,
        QWEN3_5,
        QWEN3_5_MOE,
        QWEN3_NEXT,
        SMOLLM3,
        GRANITE,
        GRANITE_HYBRID,
        NEMOTRON_H,
        OLMO2,
        OLMO3,
        EXAONE4,
        PHI3,
        GLM4,
        GEMMA2,
        GEMMA3,
        GEMMA4,
        GPT_OSS,
        ERNIE4_5,
        ERNIE4_5_MOE,
        HUNYUAN_DENSE,
        LFM2,
        LFM2_MOE,
        DEEPSEEK_V2,
        DEEPSEEK_V3,
        KIMI_K2,
        YOUTU,
        GLM4_MOE_LITE,
    )
}


def find_family(raw: dict[str, Any]) -> Family:
    """The family of a parsed `config.json`; the error for others names the missing feature."""
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError("config.json has no model_type: this is not a Hugging Face model folder")
    family = FAMILIES.get(model_type)
    if family is None:
        raise UnsupportedModelError(f"model type '{model_type}' is not supported: {_reason(model_type, raw)}")
    return family


def _reason(model_type: str, raw: dict[str, Any]) -> str:
    """Why no family is of this type."""
    known = ", ".join(FAMILIES)
    missing = MISSING.get(model_type.removesuffix("_text"))
    if missing is not None:
        return missing
    if OTHER_THAN_TEXT.search(model_type):
        return "there is no text model in it"
    if raw.keys() & {"vision_config", "audio_config"}:
        return f"it reads more than text, and its text model is none of {known}"
    return f"its decoder layer is another; supported are {known}"
