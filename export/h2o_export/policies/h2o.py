"""Chunked sparse prefill: its two graphs, and the single pass that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from h2o_export.attention_graphs import AttentionStep
from h2o_export.policies.base import EXACT, MakeReference, PolicyEntry, Reference
from h2o_export.policies.h2o_query import OwnQueriesPass, QueryPhase2
from h2o_export.policies.h2o_single_pass import SinglePass
from h2o_export.policies.h2o_steps import Phase1, Phase2
from h2o_runtime.config import PrefillConfig
from h2o_runtime.errors import ConfigError


class H2OEntry(PolicyEntry):
    def steps(self, config: PrefillConfig) -> tuple[AttentionStep, ...]:
        return Phase1(config), QueryPhase2(config) if config.score == "query" else Phase2(config)

    def rows(self, config: PrefillConfig) -> int:
        """Two chunks: the second one has a memory."""
        return 2 * int(config.chunk_size)

    def describe(self, config: PrefillConfig) -> str:
        heads = "" if config.score_heads == "kv" else ", query heads"
        return f"h2o S={config.chunk_size} L={config.local} H={config.heavy} {config.score}{heads}"

    def variants(self, config: PrefillConfig) -> tuple[PrefillConfig, ...]:
        """Every score rule whose settings fit the others."""
        rules = (config.altered(score="colsum"), *_where_it_fits(config, "window", "query"))
        return EXACT, *rules

    def reference(self, config: PrefillConfig) -> MakeReference:
        def make(kv_heads: int, sets: NDArray[np.int32]) -> Reference:
            rule = (OwnQueriesPass if config.score == "query" else SinglePass)(config, kv_heads, sets)
            return Reference("single pass", rule, rule.verdict)

        return make


def _where_it_fits(config: PrefillConfig, *scores: str) -> Iterator[PrefillConfig]:
    for score in scores:
        with suppress(ConfigError):
            yield config.altered(score=score)
