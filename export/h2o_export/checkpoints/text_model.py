"""The text model inside a folder with further models, such as a vision tower.

transformers describes it in `text_config` of config.json and puts the module's name before its tensors'
names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from h2o_export.architecture.families import FAMILIES
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

log = logging.getLogger(__name__)

TEXT = "text_config"
_BASE = "model."  # transformers' name of the model without its head
_HEAD = "lm_head."
_OF_ALL = (
    "tie_word_embeddings",
    "quantization_config",
)  # applies to all models of a folder, unless one of them sets it
# Prefixes of all tensors' names and of the text model's: in transformers since 4.52, and before.
_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("lm_head.", "lm_head."),
    ("mtp.", "mtp."),
)


def text_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The config.json of the text model alone: `raw` itself if there is no other model. Raises
    CheckpointError.
    """
    own = raw.get(TEXT)
    if own is None:
        return raw
    if not isinstance(own, dict):
        raise CheckpointError(f"config.json: {TEXT} must be an object, but is {own!r}")
    family = FAMILIES.get(str(own.get("model_type")))
    architectures = [] if family is None else [family.architecture]
    return {**{key: raw[key] for key in _OF_ALL if key in raw}, **own, "architectures": architectures}


def text_names(raw: dict[str, Any], stored: Collection[str], tied: bool, source: str) -> dict[str, str]:
    """Names of the text model's tensors → names in the files; empty if they are the same.

    Logs what is left out. Raises UnsupportedModelError if the files have no text model.
    """
    if raw.get(TEXT) is None:
        return _of_base_model(stored, tied, source)
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


def _of_base_model(stored: Collection[str], tied: bool, source: str) -> dict[str, str]:
    """A checkpoint that was saved without the head's class has names without `model.`. Raises UnsupportedModelError
    if it also lacks a head.
    """
    if "embed_tokens.weight" not in stored or any(name.startswith(_BASE) for name in stored):
        return {}
    if not tied and not any(name.startswith(_HEAD) for name in stored):
        raise UnsupportedModelError(
            f"{source}: was saved without a head (lm_head), and config.json does not tie it to the embedding: it "
            "writes no text; give the checkpoint of the whole model"
        )
    return {name if name.startswith(_HEAD) else _BASE + name: name for name in stored}
