"""Chunked sparse prefill, and its score rules, which choose heavy hitters.

A new score rule is a file in `scores` and its class in `SCORES`.
"""

from __future__ import annotations

from typing import Any

from h2o_runtime.components.registry import Registry
from h2o_runtime.policies.prefill.h2o.policy import H2O
from h2o_runtime.policies.prefill.h2o.scores.colsum import ColumnSum
from h2o_runtime.policies.prefill.h2o.scores.query import Query
from h2o_runtime.policies.prefill.h2o.scores.window import Window

__all__ = ["H2O", "SCORES", "ColumnSum", "Query", "Window"]

SCORES: Registry[H2O[Any]] = Registry(
    Query,
    ColumnSum,
    Window,
    base=H2O,
    field="score",
    group="h2o_edge.score_rules",
    name="score",
    title="score_title",
)
