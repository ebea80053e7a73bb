"""The text model inside a folder that holds other models too, such as a vision tower.

transformers describes it in `text_config` of config.json, and before its tensors' names is that of the module.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from h2o_export.architecture.families import FAMILIES
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

log = logging.getLogger(__name__)

TEXT = "text_config"
_OF_ALL = (
    "tie_word_embeddings",
    "quantization_config",
)  # said of all models of a folder, where they are not of one
# What names begin with, and with what the text model's own do: of transformers since 4.52, and before.
_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("lm_head.", "lm_head."),
)


def text_config(raw: dict[str, Any]) -> dict[str, Any]:
    """What config.json would say of the text model alone: `raw` itself, where there is no other.

    Raises CheckpointError.
    """
    own = raw.get(TEXT)
    if own is None:
        return raw
    if not isinstance(own, dict):
        raise CheckpointError(f"config.json: {TEXT} must be an object, but is {own!r}")
    family = FAMILIES.get(str(own.get("model_type")))
    architectures = [] if family is None else [family.architecture]
    return {**{key: raw[key] for key in _OF_ALL if key in raw}, **own, "architectures": architectures}


def text_names(raw: dict[str, Any], stored: Iterable[str], source: str) -> dict[str, str]:
    """Names of the text model's tensors → names in the files; none where the files hold no other model.

    Says in the log what is left out. Raises UnsupportedModelError where there is no text model in the files.
    """
    if raw.get(TEXT) is None:
        return {}
    names: dict[str, str] = {}
    others: set[str] = set()
    for name in stored:
        for prefix, own in _PREFIXES:
            if name.startswith(prefix):
                names[own + name.removeprefix(prefix)] = name
                break
        else:
            others.add(".".join(name.removeprefix("model.").split(".")[:1]))
    if not names:
        raise UnsupportedModelError(
            f"{source}: holds no text model, only {', '.join(sorted(others))}; give a checkpoint with one"
        )
    if others:
        log.warning("%s: only its text model is exported; left out: %s", source, ", ".join(sorted(others)))
    return names
