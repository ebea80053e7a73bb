"""What every score rule's entry shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_export.attention_graphs import AttentionStep
from h2o_export.policies.base import MakeReference, PolicyEntry, Reference, exact
from h2o_export.policies.h2o.single_pass import Rule, SinglePass
from h2o_export.policies.h2o.steps import Phase1
from h2o_runtime.components.options import options_of
from h2o_runtime.errors import ConfigError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy
from h2o_runtime.policies.prefill.h2o import SCORES


class ScoreEntry(PolicyEntry[Rule], ABC):
    """A score rule's entry: its Phase 2 as a graph, and its single-pass reference."""

    @abstractmethod
    def phase2(self, policy: Rule) -> AttentionStep: ...

    @abstractmethod
    def single_pass(self, policy: Rule, model: ModelSpec, sets: NDArray[np.int32]) -> SinglePass[Rule]:
        """sets [layers, boundaries, Hs, M]: those to adopt."""

    def steps(self, policy: Rule) -> tuple[AttentionStep, ...]:
        return Phase1(policy), self.phase2(policy)

    def rows(self, policy: Rule) -> int:
        """Two chunks: the second one has a memory set."""
        return 2 * policy.chunk_size

    def variants(self, policy: Rule) -> tuple[PrefillPolicy[Any], ...]:
        """Every score rule whose settings fit the others. Settings that only another rule has are small."""
        return exact(), *self._rules(policy)

    def _rules(self, policy: Rule) -> Iterator[PrefillPolicy[Any]]:
        known = {option.name for option in options_of(type(policy))}
        for kind in SCORES:
            small = {name: value for name, value in kind.small.items() if name not in known}
            with suppress(ConfigError):
                yield PREFILL.make({"score": kind.score} | small, policy)

    def reference(self, policy: Rule) -> MakeReference:
        def make(model: ModelSpec, sets: NDArray[np.int32]) -> Reference:
            rule = self.single_pass(policy, model, sets)
            return Reference("single pass", rule, rule.verdict)

        return make
