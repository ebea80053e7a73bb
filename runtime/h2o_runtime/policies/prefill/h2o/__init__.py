"""Chunked sparse prefill, and its score rules, which choose heavy hitters.

A new score rule is a file in `scores` and its class in `SCORES`.
"""

from __future__ import annotations

from typing import Any

from h2o_runtime.components.registry import Registry
from h2o_runtime.policies.prefill.h2o.base import H2O
from h2o_runtime.policies.prefill.h2o.scores.colsum import ColumnSums
from h2o_runtime.policies.prefill.h2o.scores.query import OwnQueries
from h2o_runtime.policies.prefill.h2o.scores.window import LastQueries

__all__ = ["H2O", "SCORES", "ColumnSums", "LastQueries", "OwnQueries"]

SCORES: Registry[H2O[Any]] = Registry(
    OwnQueries,
    ColumnSums,
    LastQueries,
    base=H2O,
    field="score",
    flag="--score",
    label="Score",
    symbol="score",
    meaning="How heavy hitters are chosen",
    group="h2o_edge.score_rules",
    name="score",
    title="score_title",
    prefix="score_",
)
