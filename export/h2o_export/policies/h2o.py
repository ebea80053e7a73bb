"""Chunked sparse prefill: its two graphs, and the single pass that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from h2o_export.attention_graphs import AttentionStep
from h2o_export.policies.base import MakeReference, PolicyEntry, Reference, exact
from h2o_export.policies.h2o_query import OwnQueriesPass, QueryPhase2
from h2o_export.policies.h2o_single_pass import SinglePass
from h2o_export.policies.h2o_steps import Phase1, Phase2
from h2o_runtime.config import PrefillConfig
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.prefill.h2o import H2O
from h2o_runtime.policies.prefill.h2o_query import OwnQueries


class H2OEntry(PolicyEntry[H2O]):
    policy = H2O

    def steps(self, policy: H2O) -> tuple[AttentionStep, ...]:
        return Phase1(policy), QueryPhase2(policy) if isinstance(policy, OwnQueries) else Phase2(policy)

    def rows(self, policy: H2O) -> int:
        """Two chunks: the second one has a memory."""
        return 2 * policy.chunk_size

    def describe(self, policy: H2O) -> str:
        heads = "" if policy.score_heads == "kv" else ", query heads"
        return f"h2o S={policy.chunk_size} L={policy.local} H={policy.heavy} {policy.score}{heads}"

    def variants(self, config: PrefillConfig) -> tuple[PrefillConfig, ...]:
        """Every score rule whose settings fit the others."""
        rules = (config.altered(score="colsum"), *_where_it_fits(config, "window", "query"))
        return exact(), *rules

    def reference(self, policy: H2O) -> MakeReference:
        def make(kv_heads: int, sets: NDArray[np.int32]) -> Reference:
            rule = (
                OwnQueriesPass(policy, kv_heads, sets)
                if isinstance(policy, OwnQueries)
                else SinglePass(policy, kv_heads, sets)
            )
            return Reference("single pass", rule, rule.verdict)

        return make


def _where_it_fits(config: PrefillConfig, *scores: str) -> Iterator[PrefillConfig]:
    for score in scores:
        with suppress(ConfigError):
            yield config.altered(score=score)
