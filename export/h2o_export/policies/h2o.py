"""Chunked sparse prefill: its two graphs, and the single pass that it is compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from h2o_export.attention_graphs import AttentionStep
from h2o_export.policies.base import EXACT, MakeReference, PolicyEntry, Reference
from h2o_export.policies.h2o_single_pass import SinglePass
from h2o_export.policies.h2o_steps import Phase1, Phase2
from h2o_runtime.config import PrefillConfig


class H2OEntry(PolicyEntry):
    def steps(self, config: PrefillConfig) -> tuple[AttentionStep, ...]:
        return Phase1(config), Phase2(config)

    def rows(self, config: PrefillConfig) -> int:
        """Two chunks: the second one has a memory."""
        return 2 * int(config.chunk_size)

    def describe(self, config: PrefillConfig) -> str:
        heads = "" if config.score_heads == "kv" else ", query heads"
        return f"h2o S={config.chunk_size} L={config.local} H={config.heavy} {config.score}{heads}"

    def variants(self, config: PrefillConfig) -> tuple[PrefillConfig, ...]:
        """Both score rules, unless the window does not fit."""
        if config.score_window > config.local:
            return EXACT, config
        return EXACT, config.altered(score="colsum"), config.altered(score="window")

    def reference(self, config: PrefillConfig) -> MakeReference:
        def make(kv_heads: int, sets: NDArray[np.int32]) -> Reference:
            rule = SinglePass(config, kv_heads, sets)
            return Reference("single pass", rule, rule.verdict)

        return make
