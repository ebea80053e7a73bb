"""Prefill policies: each maps a layer's queries and cache to its attention output.

A new policy is a file in this folder and its class in `PREFILL`.
"""

from __future__ import annotations

from typing import Any

from h2o_runtime.components.registry import Registry
from h2o_runtime.policies.prefill.full import Full
from h2o_runtime.policies.prefill.h2o import H2O, SCORES, ColumnSum, Query, Window
from h2o_runtime.policies.prefill.h2o.scores.query import policy_on_device
from h2o_runtime.policies.prefill.minference import VerticalSlash
from h2o_runtime.policies.prefill.policy import (
    WHOLE,
    LayerCall,
    PrefillPolicy,
    PrefillReport,
    PromptCall,
    PromptPiece,
    Seen,
)
from h2o_runtime.policies.prefill.subquadratic import Subquadratic

__all__ = [
    "PREFILL",
    "WHOLE",
    "ColumnSum",
    "Full",
    "LayerCall",
    "PrefillPolicy",
    "PrefillReport",
    "PromptCall",
    "PromptPiece",
    "Query",
    "Seen",
    "Subquadratic",
    "VerticalSlash",
    "Window",
    "policy_on_device",
]

PREFILL: Registry[PrefillPolicy[Any]] = Registry(
    H2O,
    Full,
    Subquadratic,
    VerticalSlash,
    base=PrefillPolicy,
    families={H2O: SCORES},
    field="policy",
    group="h2o_edge.prefill_policies",
)
