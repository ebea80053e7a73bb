"""Prefill settings as bundles of version 0.1 have them: of all policies, with the owner in each name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

log = logging.getLogger(__name__)

_POLICIES: Final = {
    "h2o": {
        "chunk_size": "chunk_size",
        "score": "score",
        "score_heads": "heads",
        "local": "local",
        "heavy": "heavy",
        "dense_tail": "dense_tail",
    },
    "subquadratic": {
        "window": "window",
        "global_tokens": "global_tokens",
        "log_stride": "log_stride",
        "landmark_block": "block",
        "landmark_count_bias": "count_bias",
    },
    "minference": {
        "chunk_size": "chunk_size",
        "vertical": "vertical",
        "slash": "slash",
        "line_fraction": "fraction",
        "estimate": "estimate",
    },
}
_RULES: Final = {
    "query": {
        "score_tile": "tile",
        "score_queries": "queries",
        "score_candidates": "candidates",
        "score_grow": "grow",
        "score_checks": "checks",
        "score_missed": "missed",
    },
    "window": {"score_window": "window"},
}
_AUTO_LEAST: Final = 512  # keys of the smallest memory under heavy=auto, which grew from the first token on


def is_earlier(settings: Mapping[str, Any]) -> bool:
    """Whether they are all policies' settings: no policy has a setting of this name today."""
    return "score_tile" in settings


def of_earlier(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The chosen policy's settings under their names of today."""
    names = {"policy": "policy", "batch_size": "batch_size", **_POLICIES.get(str(settings.get("policy")), {})}
    if "score" in names:
        names |= _RULES.get(str(settings.get("score")), {})
        if settings.get("sink"):
            log.warning(
                "the bundle asks for sink=%s, which is gone: its prompts are read without", settings["sink"]
            )
    found = {name: settings[old] for old, name in names.items() if old in settings}
    if "block" in found and not settings.get("landmarks", True):
        found["block"] = 0
    if not found.get("block", 1):
        found.pop("count_bias", None)
    if found.get("fraction"):
        found = {name: value for name, value in found.items() if name not in ("vertical", "slash")}
    if found.get("heavy") == "auto":
        memory = max(min(_AUTO_LEAST, found["chunk_size"] * 15 // 16), found["local"])
        found |= {"heavy": memory - found["local"], "grow": 0}
    return found
