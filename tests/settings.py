"""Settings as reports and manifests tell them: all of them, those of policies that were not chosen too."""

from __future__ import annotations

from typing import Any

from h2o_runtime.policies.prefill import PREFILL


def all_settings(chosen: dict[str, Any]) -> dict[str, Any]:
    """`chosen`, and of everything else the default."""
    return {one.name: one.default for one in PREFILL.options} | chosen
